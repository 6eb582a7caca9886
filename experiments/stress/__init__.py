"""Long runs that look for faults: killed processes, random inputs, memory growth."""
