"""Measurements of jaxfed's speed."""
