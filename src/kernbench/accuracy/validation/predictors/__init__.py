"""What answers a row: one model per category."""
