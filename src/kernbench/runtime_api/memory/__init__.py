"""The memory behind tensors: views, allocations, what is shared or lent."""
