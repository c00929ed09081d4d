"""Which tensors are still used by collectives that were not waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kernbench.errors import UsageError

if TYPE_CHECKING:
    from kernbench.memory import Buffer
    from kernbench.runtime_api.memory.storage import LabeledView, View

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
