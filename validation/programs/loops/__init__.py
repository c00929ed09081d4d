"""Loops of ours around models of others, with random weights: programs that are run by file.

Each prints ``step T ms`` for a timed step, after one that warms up. None is imported by kernbench.
"""
