"""From rows and answers to errors, goals, baselines and the error table."""
