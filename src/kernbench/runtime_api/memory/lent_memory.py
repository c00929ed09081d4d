"""Host tensors that a kernel may reach through addresses in memory (ADR-0050 D7)."""

from __future__ import annotations

import weakref
from typing import Any

from kernbench.memory import Buffer
from kernbench.runtime_api.memory.host_tensor import HostMemory


class LentMemory:
    """The tensors of another library whose addresses a program has asked for.

    They are not kept alive: an address of one that is gone belongs to nothing.
    """

    def __init__(self) -> None:
        self._tensors: dict[int, weakref.ref[Any]] = {}

    def lend(self, tensor: Any) -> None:
        """Let kernels reach the memory of ``tensor`` as long as it lives."""
        key = id(tensor)
        self._tensors[key] = weakref.ref(tensor, lambda _: self._tensors.pop(key, None))

    def find(self, address: int, sip_id: int) -> Buffer | None:
        """Return the memory that holds an address, or None."""
        for reference in list(self._tensors.values()):
            tensor = reference()
            if tensor is None or tensor.device.type != "cpu":
                continue
            memory = HostMemory(sip_id)
            buffer = memory.tensor(tensor, "lent", "an address in memory").buffer
            if buffer.address <= address < buffer.end:
                return buffer
        return None
