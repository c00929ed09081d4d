"""The memory behind tensors: one allocation that all views of a tensor share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from kernbench.clock import Handle
from kernbench.dtypes import Array, DType
from kernbench.errors import UsageError
from kernbench.memory import Buffer, DeviceMemory, Layout, Phase
from kernbench.replay import PointerArg


@dataclass(slots=True, eq=False)
class Sharing:
    """The value of ``Buffer.symmetric``: which rank shares the memory, and with which SIPs."""

    rank: int
    """The owner."""
    sips: set[int] = field(default_factory=set)
    """SIPs whose ranks it was exchanged with; empty before the rendezvous."""


def unreachable(buffer: Buffer, sip_id: int) -> str:
    """Return why kernels of another SIP may not reach a buffer, and what to do; "" if they may."""
    sharing: Sharing | None = buffer.symmetric
    if sharing is None:
        return (
            "kernels reach other SIPs only through symmetric memory; allocate it with "
            "torch.distributed.symmetric_memory.empty, and let every rank rendezvous"
        )
    if not sharing.sips:
        return (
            f"rank {sharing.rank} has not shared it; every rank of the group must call "
            "torch.distributed.symmetric_memory.rendezvous on its part"
        )
    if sip_id not in sharing.sips:
        return (
            f"rank {sharing.rank} has shared it with the ranks on SIPs "
            f"{', '.join(map(str, sorted(sharing.sips)))} only; rendezvous in a group with both"
        )
    return ""


MOST_ELEMENTS = 1 << 14
"""The largest tensor whose numbers are kept: lengths, offsets, pages, expert ids."""


class KnownMemory:
    """Stand-ins for the buffers of one launch, with contents where those are known."""

    def __init__(self) -> None:
        self._stand_ins: dict[int, tuple[Buffer, Buffer]] = {}

    @property
    def knows_something(self) -> bool:
        return any(buffer.has_data for _, buffer in self._stand_ins.values())

    def params(self, params: Sequence[Any]) -> list[Any]:
        """Return a launch's parameters on the stand-ins."""
        return [
            PointerArg(self._stand_in(param.buffer), param.offset_bytes)
            if isinstance(param, PointerArg)
            else param
            for param in params
        ]

    def _stand_in(self, buffer: Buffer) -> Buffer:
        pair = self._stand_ins.get(id(buffer))
        if pair is None:
            known = buffer.known
            stand_in = Buffer(
                buffer.address, buffer.size_bytes, buffer.sip_id, buffer.label, known is not None
            )
            stand_in.symmetric = buffer.symmetric
            if known is not None:
                stand_in.adopt(known.copy())
            pair = self._stand_ins[id(buffer)] = buffer, stand_in
        return pair[1]

    def keep(self, written: Iterable[Buffer], writer: Handle) -> None:
        """Copy back what the launch has written, as far as that is known."""
        for buffer in written:
            _, stand_in = self._stand_ins.get(id(buffer), (None, None))
            if stand_in is not None and stand_in.has_data:
                buffer.know(stand_in.bytes, writer)


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


Span = tuple[int, int]


class PendingUse(Protocol):
    """An entry of :attr:`Buffer.in_flight`: a collective that still uses the buffer."""

    @property
    def use(self) -> str:
        """What an error says about a tensor that it uses."""

    def conflicts(self, buffer: Buffer, span: Span, writes: bool) -> bool:
        """Return whether an access to bytes of a buffer would race with it."""


def byte_span(tensor: View) -> Span:
    """Return the first byte of the buffer that a tensor shows, and the one after the last."""
    size = tensor.dtype.itemsize
    start = tensor.offset * size
    if 0 in tensor.shape:
        return start, start
    last = 0
    for count, stride in zip(tensor.shape, tensor.stride(), strict=True):
        last += (count - 1) * stride
    return start, start + (last + 1) * size


def find_in_flight(tensor: View, writes: bool) -> PendingUse | None:
    """Return a collective that reading (or writing) the tensor now would race with, or None."""
    for work in tensor.buffer.in_flight:
        if work.conflicts(tensor.buffer, byte_span(tensor), writes):
            flight: PendingUse = work
            return flight
    return None


def check_not_in_flight(tensor: LabeledView, entry: str, writes: bool) -> None:
    """Refuse a host access that would race with a collective.

    Raises:
        UsageError: It would; names the collective.
    """
    work = find_in_flight(tensor, writes)
    if work is not None:
        raise UsageError(f"{entry} of {tensor.label}: it is {work.use}")
