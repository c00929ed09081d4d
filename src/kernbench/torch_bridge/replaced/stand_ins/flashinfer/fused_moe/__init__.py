"""Experts, of which the stand-in has no kernels."""
