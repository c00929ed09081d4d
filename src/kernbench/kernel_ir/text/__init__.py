"""TTIR text to typed SSA."""
