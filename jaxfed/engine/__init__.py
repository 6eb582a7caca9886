"""The compiled round, and the devices and processes that run it."""
