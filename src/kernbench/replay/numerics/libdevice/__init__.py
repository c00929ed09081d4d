"""CUDA's math library on numpy arrays."""
