"""The files and the terminal output of an experiment."""
