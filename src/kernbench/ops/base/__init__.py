"""How the kernels are compiled, where results go, and the layout of their operands."""
