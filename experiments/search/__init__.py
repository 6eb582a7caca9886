"""The search of hyper-parameters on held-out training data."""
