"""Formats of timelines that others read: each in a module of its own, by one walk over the log."""
