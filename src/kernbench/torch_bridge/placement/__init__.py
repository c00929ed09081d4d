"""On which simulated device each tensor is, and the keys by which calls are recognized."""
