"""How accurate kernbench is: rows that others published, who predicts them, and the error table."""
