"""What would be tuned for experts."""


def get_hybrid_num_tokens_buckets(max_num_tokens: int, min_num_tokens: int = 1) -> tuple[int, ...]:
    """Return the numbers of tokens to tune for: none, as there is nothing to tune."""
    return ()
