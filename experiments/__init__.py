"""Settings, drivers and benchmarks of jaxfed's experiments."""
