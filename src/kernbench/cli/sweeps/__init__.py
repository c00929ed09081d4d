"""Sweeps: points of a study, results in a folder, engines that run points (ADR-0150)."""
