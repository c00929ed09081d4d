"""Kernels of published libraries, forward and backward, against their definitions in PyTorch."""
