"""Tensors of collectives that nobody has waited for: what may be done with them meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from kernbench.errors import UsageError
from kernbench.torch_bridge.device.residence import Residence, settle

if TYPE_CHECKING:
    from kernbench.runtime_api import Part
    from kernbench.torch_bridge.operations import Operation


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """Bytes of a storage that a collective reads or writes."""

    part: Part
    start: int
    stop: int
    writes: bool


def begin_use(part: Part, inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> list[Residence]:
    """Note what a collective uses; end it with what this returns."""
    found: list[Residence] = []
    for tensors, writes in ((outputs, True), (inputs, False)):
        # Who writes a tensor has it for itself; that it is read too says nothing more.
        for tensor in tensors if writes or inputs is not outputs else ():
            residence = settle(tensor, None)
            if residence is not None:
                residence.uses += (Use(part, *_span(tensor), writes),)
                found.append(residence)
    return found


def end_use(part: Part, residences: Iterable[Residence]) -> None:
    """Forget it."""
    for residence in residences:
        residence.uses = tuple(each for each in residence.uses if each.part is not part)


def check_use(operation: Operation, args: Any, tensor: Tensor, residence: Residence) -> None:
    """Refuse to read what a collective writes, or to write what it uses.

    Raises:
        UsageError: The operation would.
    """
    writes = any(
        _holds(args[position], tensor) for position in operation.written if position < len(args)
    )
    use = find_use(residence, *_span(tensor), writes)
    if use is not None:
        what = "writes" if writes else "reads"
        raise UsageError(
            f"{operation.name} {what} a tensor of shape {tuple(tensor.shape)} that is in use by "
            f"{use.part.describe()}, called at {use.part.site}; call wait() on its Work first"
        )


def find_use(residence: Residence, start: int, stop: int, writes: bool) -> Use | None:
    """Return a use that does not go with reading, or writing, some bytes, if there is one."""
    for use in residence.uses:
        if (writes or use.writes) and use.start < stop and start < use.stop:
            return use
    return None


def _holds(arg: Any, tensor: Tensor) -> bool:
    return arg is tensor or (isinstance(arg, (list, tuple)) and any(each is tensor for each in arg))


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return the first byte of its storage that a tensor shows, and the one after the last."""
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
