"""What PyTorch programs did, kept with a run, and done again without them."""
