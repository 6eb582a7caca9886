"""Runners of released code, a file for each repository."""
