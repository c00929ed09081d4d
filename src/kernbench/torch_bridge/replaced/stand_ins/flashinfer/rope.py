"""Rotary embeddings."""

import torch
from torch import Tensor


def apply_rope_with_cos_sin_cache_inplace(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool = True,
) -> None:
    """Rotate queries and keys ``(tokens, heads * head_size)`` by the angles of their positions."""
    torch.ops.flashinfer.rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)
