"""Files, console, signals, command line: what every program needs."""
