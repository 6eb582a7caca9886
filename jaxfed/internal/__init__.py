"""Files, console, signals and command line for all programs."""
