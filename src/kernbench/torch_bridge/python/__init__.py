"""Parts of Python that each process has once: locks, modules, clocks, output."""
