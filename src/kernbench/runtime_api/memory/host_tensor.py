"""Arguments from other libraries: tensors in host memory (ADR-0040).

A kernel reads and writes their memory where it is. Nothing of the library is imported: what counts
is ``data_ptr()``, ``device`` and ``untyped_storage()``, which a PyTorch tensor has.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from kernbench.errors import BadPointerError
from kernbench.memory import Buffer


class Place:
    """Where an argument that is not a tensor of the run points: all that a launch asks for."""

    __slots__ = ("_address", "buffer", "dp", "label", "name")

    def __init__(self, address: int, buffer: Buffer, name: str) -> None:
        self._address = address
        self.buffer = buffer
        self.name = name
        self.label = buffer.label
        self.dp = None

    @property
    def nbytes(self) -> int:
        """Bytes of the memory behind it, as the argument has no size of its own here."""
        return self.buffer.size_bytes


class HostMemory:
    """The host memory that one launch reaches: one buffer per storage, however many views."""

    __slots__ = ("_buffers", "_sip_id")

    def __init__(self, sip_id: int) -> None:
        self._sip_id = sip_id
        self._buffers: dict[tuple[int, int], Buffer] = {}

    def __bool__(self) -> bool:
        return bool(self._buffers)

    def join(self, buffer: Buffer) -> None:
        """Add memory of the host that was found in another way."""
        self._buffers[buffer.address, buffer.size_bytes] = buffer

    def tensor(self, value: Any, name: str, what: str) -> Place:
        """Return ``given`` as an argument; ``name`` is the parameter's, ``what`` begins an error.

        Raises:
            BadPointerError: It lies on a device.
        """
        kind = getattr(getattr(value, "device", None), "type", "cpu")
        if kind != "cpu":
            raise BadPointerError(
                f"{what} lies on device {value.device}, which a simulated SIP cannot reach; "
                "use .cpu() or make a tensor of this run"
            )
        address = int(value.data_ptr())
        start, size_bytes = _memory_of(value, address)
        buffer = self._buffers.get((start, size_bytes))
        if buffer is None:
            shape = tuple(getattr(value, "shape", ()))
            label = f"{name} {shape} {str(getattr(value, 'dtype', '')).removeprefix('torch.')}"
            buffer = Buffer(start, size_bytes, self._sip_id, label, has_data=True)
            if size_bytes:
                memory = (ctypes.c_uint8 * size_bytes).from_address(start)
                buffer.adopt(np.ndarray((size_bytes,), np.uint8, memoryview(memory)))
            self._buffers[start, size_bytes] = buffer
        return Place(address, buffer, name)


class LentMemory:
    """The tensors of another library whose addresses a program has asked for.

    Kernels reach them through addresses in memory (ADR-0050 D7). They are not kept alive: an
    address of one that is gone belongs to nothing.
    """

    def __init__(self) -> None:
        self._tensors: dict[int, weakref.ref[Any]] = {}

    def lend(self, tensor: Any) -> None:
        """Make the memory of ``tensor`` reachable for kernels as long as it lives."""
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


def is_host_tensor(value: Any) -> bool:
    """Return whether an argument looks like a tensor of another library: memory and its size."""
    return callable(getattr(value, "data_ptr", None)) and (
        hasattr(value, "untyped_storage") or isinstance(getattr(value, "nbytes", None), int)
    )


def _memory_of(value: Any, address: int) -> tuple[int, int]:
    """Return the first byte of a tensor's storage and the storage's length."""
    storage = getattr(value, "untyped_storage", None)
    if storage is None:
        return address, int(value.nbytes)
    memory = storage()
    return int(memory.data_ptr()), int(memory.nbytes())
