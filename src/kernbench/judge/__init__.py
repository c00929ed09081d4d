"""Judging kernels: right or wrong, how fast, and no way to cheat (ADR-0256)."""
