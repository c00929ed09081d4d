"""The terminal: progress, Ctrl-C, closed pipes."""
