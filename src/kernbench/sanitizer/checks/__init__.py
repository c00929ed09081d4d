"""Checks of one command: what its lanes hold, and where they go."""
