"""Measured rows: their sources, their devices, and how they were measured."""
