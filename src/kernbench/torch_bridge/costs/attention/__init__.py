"""What attention costs: PyTorch's own by the backend that it takes, and that of flash_attn."""

from kernbench.torch_bridge.costs.attention.backends import AttentionBackends
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
    FlashCall,
    FlashLengths,
    flash_kernels,
    lengths_between,
)
from kernbench.torch_bridge.costs.attention.own import OwnAttention, own_kernels
