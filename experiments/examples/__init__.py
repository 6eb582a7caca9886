"""Short scripts to copy from, one task each."""
