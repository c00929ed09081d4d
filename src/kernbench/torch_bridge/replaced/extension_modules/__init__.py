"""Extension modules of CUDA C++ that are installed: their operators by their schemas (ADR-0258)."""
