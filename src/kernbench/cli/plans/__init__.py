"""Plans: which way of splitting a model over devices is fastest, and which fit (ADR-0154)."""
