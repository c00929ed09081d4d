"""What attention costs: PyTorch's own by the backend that it takes, and that of flash_attn."""

from kernbench.torch_bridge.costs.attention.backends import AttentionBackends
from kernbench.torch_bridge.costs.attention.calls import AttentionCosts
from kernbench.torch_bridge.costs.attention.choice import (
    CUDNN,
    EFFICIENT,
    FLASH,
    HALVES,
    MATH,
    OLDEST,
    WIDEST_CUDNN,
    WIDEST_FLASH,
    AttentionCall,
    allows,
    chosen_kind,
    head_step,
    refusal,
)
from kernbench.torch_bridge.costs.attention.flash import (
    FlashAttentionCosts,
    FlashCall,
    lengths_between,
)

__all__ = [
    "CUDNN",
    "EFFICIENT",
    "FLASH",
    "HALVES",
    "MATH",
    "OLDEST",
    "WIDEST_CUDNN",
    "WIDEST_FLASH",
    "AttentionBackends",
    "AttentionCall",
    "AttentionCosts",
    "FlashAttentionCosts",
    "FlashCall",
    "allows",
    "chosen_kind",
    "head_step",
    "lengths_between",
    "refusal",
]
