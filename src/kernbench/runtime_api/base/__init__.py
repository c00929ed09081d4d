"""One run: machine, clock, devices, log, and what orders its operations."""
