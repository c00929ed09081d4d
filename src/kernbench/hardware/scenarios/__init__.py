"""What differs from the machine by chance or by a fault, drawn from a seed (ADR-0176)."""
