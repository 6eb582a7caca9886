"""Programs compiled for an accelerator that this machine does not have."""
