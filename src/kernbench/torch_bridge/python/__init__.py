"""Parts of Python that each real process has once: locks, modules, clocks, output."""
