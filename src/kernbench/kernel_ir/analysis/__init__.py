"""What a kernel's text or trace says without data: bytes touched, TCM, pipelining."""
