"""Benches and programs: finding, loading, their parameters, what is said when they fail."""
