"""Predictors of measured rows: one per category."""
