"""The programs that benchmarks measure."""
