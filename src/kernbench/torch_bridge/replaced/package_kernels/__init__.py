"""Kernels of packages that have stand-ins: what they compute, and how long they take."""
