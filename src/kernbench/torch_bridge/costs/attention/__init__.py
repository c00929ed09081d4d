"""What attention costs: PyTorch's own by the backend that it takes, and that of flash_attn."""

from kernbench.torch_bridge.costs.attention.backends import AttentionBackends
from kernbench.torch_bridge.costs.attention.calls import AttentionCosts
from kernbench.torch_bridge.costs.attention.choice import (
    EFFICIENT,
    MATH,
    AttentionCall,
    chosen_kind,
)
from kernbench.torch_bridge.costs.attention.flash import (
    FlashAttentionCosts,
    FlashCall,
    lengths_between,
)

__all__ = [
    "EFFICIENT",
    "MATH",
    "AttentionBackends",
    "AttentionCall",
    "AttentionCosts",
    "FlashAttentionCosts",
    "FlashCall",
    "chosen_kind",
    "lengths_between",
]
