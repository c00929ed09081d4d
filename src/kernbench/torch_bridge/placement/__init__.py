"""On which simulated device a tensor is, and what its calls are known by."""
