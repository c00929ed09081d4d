"""What the commands of programs cost: arithmetic, bytes, bursts, the shared cache."""
