"""Calls of collectives: who takes part, what is moved, what is waited for."""
