"""The terminal: progress, Ctrl-C, readers that go away."""
