"""Launches that are timed a few commands at a time, while others run."""
