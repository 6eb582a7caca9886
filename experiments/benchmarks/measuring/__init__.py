"""Timing, profiles, counts of operations, tables and files of benchmarks."""
