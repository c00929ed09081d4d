"""Starting PyTorch programs, and what surrounds each of their processes."""
