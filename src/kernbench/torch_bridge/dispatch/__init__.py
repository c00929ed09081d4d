"""Every operation that PyTorch executes: where, on what, for how long."""
