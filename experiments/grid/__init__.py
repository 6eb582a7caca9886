"""Grids of runs: columns, rows and seeds, each run once and read back."""
