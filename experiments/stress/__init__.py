"""Long runs that detect faults: killed processes and memory growth."""
