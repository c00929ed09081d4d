"""The tensor of a bench, its arithmetic, and the way of its bytes to the host."""
