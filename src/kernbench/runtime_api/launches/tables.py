"""The sizes of tensors that a launch accesses through loaded indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernbench.kernel_time import Tables


def tables_of(gathered: Sequence[int], pointers: Sequence[Any] | Mapping[int, Any]) -> Tables:
    """Return the sizes of the buffers behind pointer parameters, given by index."""
    return tuple((index, pointers[index].buffer.size_bytes) for index in gathered)
