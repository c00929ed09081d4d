"""Benches and programs: how they are found and loaded, their parameters, their failures."""
