"""A stand-in for a library whose classes remember their process."""
