"""Transformer Engine's Python as it is installed, on a stand-in for its extension (ADR-0288)."""
