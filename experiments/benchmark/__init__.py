"""Which method should I use: methods compared over skews and seeds, with equal tuning budgets."""
