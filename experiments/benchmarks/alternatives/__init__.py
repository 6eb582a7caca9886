"""Rounds of jaxfed beside those of other simulators."""
