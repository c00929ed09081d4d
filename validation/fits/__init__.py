"""Fits to published rows: kernels of vendors' libraries, and one device's numbers for another."""
