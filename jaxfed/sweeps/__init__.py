"""Many experiments in as few programs as possible."""
