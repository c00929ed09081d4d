"""Operations as a GPU has them: for a CPU PyTorch composes them of others, or lacks them."""
