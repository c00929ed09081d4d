"""Rows of a layer norm, each of which PyTorch gives a block of threads of its own.

``vectorized_layer_norm_kernel`` of ATen's ``layer_norm_kernel.cu`` has a block of 128 threads for a
row, and four elements for a thread. The block combines means and deviations by shuffles within its
warps, then through shared memory. A row of 40 elements takes as many instructions as one of 512.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernbench.hardware import Machine

_OPERATION = "aten.native_layer_norm"
_CYCLES = 380
"""Of a PE for a block. Fitted to timm's ConvNeXt-Atto-OLS, whose rows have 40 to 320 elements, on
RTX 3090; RTX 4090, RTX 5090 and RTX PRO 6000 ask for 390 to 430 (ADR-0203)."""


def rows_ps(machine: Machine, name: str, args: Any, sip_id: int) -> int:
    """Return how long a device issues the blocks of a layer norm's rows; 0 for what has none."""
    if name != _OPERATION or machine.spec.kernel_library is None:
        return 0
    sip = machine.sip_at(sip_id)
    rows = args[0].numel() // max(prod(args[1]), 1)
    return sip.cycles_ps(-(-rows // sip.num_pes) * _CYCLES)
