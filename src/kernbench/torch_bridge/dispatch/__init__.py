"""Every operation that PyTorch executes: on which device, with what data, for how long."""
