"""Replacements for parts of PyTorch that assume a GPU or a compiler."""
