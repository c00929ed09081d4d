"""A simulated process: its host, its commands, its global state."""
