"""The tensor of a bench, its arithmetic, and how its bytes reach the host."""
