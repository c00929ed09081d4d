"""Tensors of pending collectives: which accesses to them are errors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kernbench.errors import UsageError
from kernbench.memory import Phase
from kernbench.runtime_api import Part
from kernbench.torch_bridge.base.operations import Operation
from kernbench.torch_bridge.placement.residence import Residence, known_residence, settle


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """A byte range of a storage that a pending collective reads or writes."""

    part: Part
    start: int
    stop: int
    writes: bool


def begin_use(part: Part, inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> list[Residence]:
    """Record the tensors of a collective; :func:`end_use` takes what this returns."""
    use: list[Residence] = []
    for tensors, writes in ((outputs, True), (inputs, False)):
        # A write excludes every other access, so that a read of the same bytes adds nothing.
        for tensor in tensors if writes or inputs is not outputs else ():
            residence = settle(tensor, None)
            if residence is not None:
                residence.uses += (Use(part, *span_of(tensor), writes),)
                use.append(residence)
                if residence.block is not None and residence.block.allocation is not None:
                    residence.block.allocation.is_for(Phase.COMMUNICATION)
    return use


def end_use(part: Part, residences: Iterable[Residence]) -> None:
    """Remove the records of a collective."""
    for residence in residences:
        residence.uses = tuple(use for use in residence.uses if use.part is not part)


def check_use(operation: Operation, args: Any, tensor: Tensor, residence: Residence) -> None:
    """Refuse to read what a pending collective writes, or to write what it reads or writes.

    Raises:
        UsageError: The operation would.
    """
    writes = any(
        _holds(args[position], tensor) for position in operation.changed if position < len(args)
    )
    _check(operation, tensor, residence, writes)


def check_named(operation: Operation, named: dict[str, Any]) -> None:
    """Do the same for an operation's keyword arguments, such as ``out``.

    Raises:
        UsageError: The operation would.
    """
    for name, value in named.items():
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            residence = known_residence(tensor) if isinstance(tensor, Tensor) else None
            if residence is not None and residence.uses:
                _check(operation, tensor, residence, name in operation.written_names)


def _check(operation: Operation, tensor: Tensor, residence: Residence, writes: bool) -> None:
    first, stop = span_of(tensor)
    for use in residence.uses:
        if _conflicts(use, first, stop, writes) and _touches(tensor, use):
            part, what = use.part, "writes" if writes else "reads"
            raise UsageError(
                f"{operation.name} {what} a tensor of shape {tuple(tensor.shape)} that is in use "
                f"by {part.describe()}, called at {part.site}; call wait() on its Work first"
            )


def find_use(residence: Residence, start: int, stop: int, writes: bool) -> Use | None:
    """Return a use that conflicts with reading, or writing, some bytes; None if there is none."""
    for use in residence.uses:
        if _conflicts(use, start, stop, writes):
            return use
    return None


def _conflicts(use: Use, start: int, stop: int, writes: bool) -> bool:
    return (writes or use.writes) and use.start < stop and start < use.stop


def _touches(tensor: Tensor, use: Use) -> bool:
    """Return whether an element of a strided tensor overlaps a use, which may lie in a gap."""
    size = tensor.element_size()
    dims = [pair for pair in zip(tensor.stride(), tensor.shape, strict=True) if pair[1] > 1]
    dims.sort(reverse=True)
    return _is_among(tensor.storage_offset() * size, dims, size, use)


def _is_among(start: int, dims: list[tuple[int, int]], size: int, use: Use) -> bool:
    """Return whether elements from a byte on overlap a use; dims are sorted by falling stride."""
    stop = start + size + sum(stride * (count - 1) for stride, count in dims) * size
    if stop <= use.start or use.stop <= start:
        return False
    if not dims or (use.start <= start and stop <= use.stop):
        return True
    (stride, count), *inner = dims
    if not stride:
        return _is_among(start, inner, size, use)
    # Earlier ones end before the use, later ones begin after it.
    extent = stop - start - stride * (count - 1) * size
    first = max(0, (use.start - start - extent) // (stride * size))
    last = min(count - 1, (use.stop - 1 - start) // (stride * size))
    return any(
        _is_among(start + index * stride * size, inner, size, use)
        for index in range(first, last + 1)
    )


def _holds(arg: Any, tensor: Tensor) -> bool:
    return arg is tensor or (isinstance(arg, (list, tuple)) and any(item is tensor for item in arg))


def span_of(tensor: Tensor) -> tuple[int, int]:
    """Return the byte range of its storage that a tensor spans, as start and end."""
    size = tensor.element_size()
    start = tensor.storage_offset() * size
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    if not tensor.numel():
        return start, start
    last = sum(
        (count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return start, start + (last + 1) * size
