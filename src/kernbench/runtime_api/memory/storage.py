"""The memory behind tensors: one allocation that all views of a tensor share."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kernbench.dtypes import DType
from kernbench.memory import Buffer, DeviceMemory, Layout, Phase

Array = npt.NDArray[Any]


class View(Protocol):
    """Some elements of a buffer: a tensor, or what a record keeps of one."""

    @property
    def buffer(self) -> Buffer: ...

    @property
    def dtype(self) -> DType: ...

    @property
    def offset(self) -> int:
        """The position of the first one in the buffer, in elements."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def stride(self) -> tuple[int, ...]:
        """Return the strides, in elements."""


class LabeledView(View, Protocol):
    """A view that errors can name."""

    @property
    def label(self) -> str: ...


class Storage:
    """The owner of a buffer, freed when no tensor views it any more.

    The host frees it in its own time, while commands that use it may still be queued. That is
    safe: the stream is in order, and records hold the :class:`Buffer`, never its address.
    """

    __slots__ = ("_memory", "buffer")

    def __init__(self, memory: DeviceMemory, size_bytes: int, name: str, layout: Layout) -> None:
        self._memory = memory
        self.buffer: Buffer = memory.allocate(size_bytes, name, layout)

    def __del__(self) -> None:
        # Missing where the allocation failed or was interrupted.
        buffer = getattr(self, "buffer", None)
        if buffer is not None:
            self._memory.free(buffer)


def keep_for(phase: Phase, *tensors: View | None) -> None:
    """Note for the run's log what the memory of tensors is for."""
    for tensor in tensors:
        if tensor is not None and tensor.buffer.allocation is not None:
            tensor.buffer.allocation.is_for(phase)


def device_array(
    buffer: Buffer,
    dtype: DType,
    offset: int = 0,
    shape: tuple[int, ...] = (),
    strides: tuple[int, ...] = (),
) -> Array:
    """Return a writable view of part of a buffer's bytes; counts are in elements."""
    size = dtype.itemsize
    return np.ndarray(
        shape,
        dtype.numpy,
        buffer=buffer.bytes.data,
        offset=offset * size,
        strides=tuple(stride * size for stride in strides),
    )


class BufferView:
    """What records keep of a tensor: which bytes of which buffer, whoever owns its range now."""

    __slots__ = ("buffer", "dtype", "offset", "shape", "strides")

    def __init__(self, tensor: View) -> None:
        self.buffer = tensor.buffer
        self.dtype = tensor.dtype
        self.offset = tensor.offset
        self.shape = tensor.shape
        self.strides = tensor.stride()

    def stride(self) -> tuple[int, ...]:
        """Return the strides, in elements."""
        return self.strides

    def array(self) -> Array:
        """Return the elements as a writable array."""
        return device_array(self.buffer, self.dtype, self.offset, self.shape, self.strides)

    @property
    def is_counted(self) -> bool:
        """Whether the buffer tracks which of its bytes were written."""
        return self.buffer.written is not None

    def count(self) -> None:
        """Make the buffer track writes from now on; all of it counts as written so far."""
        if self.buffer.written is None:
            self.buffer.written = np.full(self.buffer.size_bytes, 255, np.uint8)

    def written(self) -> Array:
        """Return an array like that of the elements, all bits set where they were written.

        The buffer must count.
        """
        assert self.buffer.written is not None
        size = self.dtype.itemsize
        return np.ndarray(
            self.shape,
            f"u{size}",
            buffer=self.buffer.written.data,
            offset=self.offset * size,
            strides=tuple(stride * size for stride in self.strides),
        )


def as_elements(values: Array, dtype: DType) -> Array:
    """Return a contiguous copy of ``values`` in ``dtype``; what is too large becomes inf."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(values, dtype=dtype.numpy, order="C")
