"""How often kernels that reduce rows read them from HBM: softmax, and gradients of norms.

ATen's softmax keeps a row of up to 1024 elements in the registers of a warp, and one that fits in
the default shared memory of a block there. Longer rows are read once for the maximum, once for the
sum and once for the results; backward, once for the sum and once for the results. What the cache
still holds of the rows that are under way does not come from HBM again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernbench.hardware import SipSpec

_IN_REGISTERS = 1024
"""Elements of a row."""
_IN_SHARED_MEMORY = 48 << 10
"""Bytes that a block has without asking for more."""
_BLOCKS_PER_PE = 2
"""Of 1024 threads, each with a row of its own."""
_SOFTMAX = {"aten._softmax": (1, 3), "aten._log_softmax": (1, 3)}
_BACKWARD = {"aten._softmax_backward_data": (2, 2), "aten._log_softmax_backward_data": (2, 2)}
_READS = _SOFTMAX | _BACKWARD
"""By operation: tensors that it reads, with the dim after them, and how often it reads long rows.
"""
_NORMS_BACKWARD = frozenset(
    {"aten.native_layer_norm_backward", "aten.native_group_norm_backward"}
    | {"aten._fused_rms_norm_backward"}
)
"""Gradients of inputs and of weights are kernels of their own, which read the same tensors."""


def reads_of_rows(name: str, args: Any, sip: SipSpec) -> float:
    """Return how many times an operation reads its operands from HBM; 1 if they are not rows."""
    if name in _NORMS_BACKWARD:
        wanted = args[-1]
        return 2.0 if isinstance(wanted, (list, tuple)) and any(wanted[1:]) else 1.0
    if name not in _READS:
        return 1.0
    num_tensors, most = _READS[name]
    x, dim = args[0], args[num_tensors]
    if x.is_nested or not x.dim() or dim % x.dim() != x.dim() - 1:
        return 1.0
    row_bytes = x.shape[-1] * x.element_size()
    if x.shape[-1] <= _IN_REGISTERS or row_bytes <= _IN_SHARED_MEMORY:
        return 1.0
    under_way = min(x.numel() // x.shape[-1], sip.num_pes * _BLOCKS_PER_PE)
    return 1.0 + (most - 1) * _missed(num_tensors * under_way * row_bytes, sip)


def _missed(num_bytes: int, sip: SipSpec) -> float:
    """Return the share that HBM brings again: none of what the cache holds, all of twice that."""
    if sip.cache is None:
        return 1.0
    held = float(sip.cache.capacity_mib) * 2**20 * float(sip.cache.retained_share)
    return min(max(num_bytes / held - 1, 0.0), 1.0)
