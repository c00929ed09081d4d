"""Under the sanitizer: which memory of PyTorch's tensors is uninitialized (ADR-0087)."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from kernbench.memory import POISON, Buffer
from kernbench.torch_bridge.placement.names import unobserved
from kernbench.torch_bridge.placement.residence import Residence, residence_of


def begin_unwritten(result: Any) -> None:
    """Fill a fresh tensor's memory with :data:`POISON`, and track what kernels write."""
    residence = residence_of(result) if isinstance(result, Tensor) else None
    if residence is None:
        return
    storage = result.untyped_storage()
    with unobserved():
        storage.fill_(POISON)
    residence.written = np.zeros(storage.nbytes(), np.uint8)


def count_writes(tensor: Tensor, residence: Residence, buffer: Buffer) -> None:
    """Let a kernel's launch see which bytes are uninitialized, and track what it writes.

    Operations of PyTorch are not tracked. A tensor that one has written in place counts as wholly
    written: its version, or bytes other than :data:`POISON` where no kernel wrote, show that.
    """
    count = residence.written
    if count is None:
        return
    # Tensors of inference mode have no version: there only the bytes show it.
    version = 0 if tensor.is_inference() else tensor._version
    if version or (buffer.bytes[count == 0] != POISON).any():
        residence.written = None
        return
    buffer.written = count
