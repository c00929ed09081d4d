"""Measured rows: where they come from, of which device, how they were measured."""
