"""The table of errors: groups, goals, baselines, sweeps, and the page."""
