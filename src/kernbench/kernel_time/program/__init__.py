"""One program of a kernel on one PE: its commands, its queues, what waits for what."""
