"""Parts of PyTorch that suppose a GPU or a compiler, replaced."""
