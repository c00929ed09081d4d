"""Keys of latent attention from their parts."""

import torch
from torch import Tensor


def concat_mla_k(k: Tensor, k_nope: Tensor, k_rope: Tensor) -> None:
    """Write ``k_nope``, of all heads, and ``k_rope``, which they share, to ``k``."""
    torch.ops.flashinfer.concat_mla_k(k, k_nope, k_rope)
