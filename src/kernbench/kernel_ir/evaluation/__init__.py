"""Evaluation of TTIR for all programs of a grid at once."""
