"""What an experiment writes and shows."""
