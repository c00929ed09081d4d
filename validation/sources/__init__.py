"""How sources measured: their launches, loops, clocks, stacks and kernels of peers."""
