"""FedSSD: its settings, a flag file for each column of its tables, and its numbers."""
