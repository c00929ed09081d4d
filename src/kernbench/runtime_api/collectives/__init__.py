"""Calls of collectives: which ranks take part, what they move and wait for."""
