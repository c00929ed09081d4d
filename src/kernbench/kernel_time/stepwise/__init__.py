"""Launches that are timed a few commands at a time, as others run beside them."""
