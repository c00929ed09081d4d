"""Operations that touch memory here and there: elements of unlike operands, and selections.

PyTorch loads the operands of an elementwise operation an element at a time if they are unlike.
Lanes beside each other make results that are beside each other in memory. Where an operand lies in
another order (an image of planes beside one that is channels-last), their elements of it are in
different sectors of 32 bytes, each of which the cache gives whole.

A selection by indices takes runs of bytes of its table, an element or a row each, and DRAM moves
whole bursts. Where the indices point is not known without data; they are taken to be random, as
those of tokens, of neighbors in a graph and of permutations are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, channels_last, channels_last_3d

from kernbench.hardware import SipSpec
from kernbench.library_kernels import aten, kept_share

SECTOR = 32
"""Bytes that a GPU's cache gives at a time."""


def are_unlike(tensors: Iterable[Any]) -> bool:
    """Return whether the operands and the result of an elementwise operation are unlike.

    So they are where dtypes differ, apart from masks, or where one is broadcast or transposed.
    """
    first, *others = [
        tensor
        for tensor in tensors
        if isinstance(tensor, Tensor) and (bool(tensor.dim()) or tensor.device.type != "cpu")
    ] or [None]
    return first is not None and any(
        other.numel() != first.numel()
        or (other.dtype != first.dtype and torch.bool not in (other.dtype, first.dtype))
        or _steps(other) != _steps(first)
        for other in others
    )


def spread_bytes(operands: Iterable[Any], result: Any) -> int:
    """Return the bytes of sectors that are loaded besides the elements that a block needs."""
    if not isinstance(result, Tensor) or not result.numel() or not has_steps(result):
        return 0
    # The nearest of the result's elements first.
    dims = [dim for dim, size in enumerate(result.shape) if size > 1]
    order = sorted(dims, key=lambda dim: (result.stride(dim), -dim))
    return sum(
        round(_spread(operand, result.shape, order) * result.numel())
        for operand in operands
        if isinstance(operand, Tensor) and has_steps(operand) and _steps(operand) != _steps(result)
    )


def spread_of_copy(tensor: Tensor) -> int:
    """Return :func:`spread_bytes` of making a tensor contiguous."""
    return round(_spread(tensor, tensor.shape, [*range(tensor.dim())][::-1]) * tensor.numel())


def _spread(operand: Tensor, shape: tuple[int, ...], order: list[int]) -> float:
    """Return the bytes of an operand's sectors per element of a result, less those it needs.

    Counted over the elements of one block of threads in the middle of the result, whose dims are in
    memory in this order, the nearest first.
    """
    elements = math.prod(shape)
    count = min(aten.ELEMENTS_OF_BLOCK, elements)
    first = (elements - count) // 2
    left = np.arange(first, first + count)
    places = np.zeros(count, dtype=np.int64)
    ahead = len(shape) - operand.dim()
    for dim in order:
        size = shape[dim]
        if dim >= ahead and operand.shape[dim - ahead] > 1:
            places += left % size * operand.stride(dim - ahead)
        left = left // size
    item = operand.element_size()
    distinct = len(np.unique(places))
    sectors = len(np.unique(places * item // SECTOR))
    return max(sectors * SECTOR - distinct * item, 0) / count


def has_steps(tensor: Tensor) -> bool:
    """Return whether a tensor's elements lie in strides; sparse and nested ones do not."""
    return tensor.layout is torch.strided and not tensor.is_nested


def is_planar(image: Tensor) -> bool:
    """Return whether the channels of an element are not contiguous."""
    formats = {4: channels_last, 5: channels_last_3d}
    return image.dim() not in formats or not image.is_contiguous(memory_format=formats[image.dim()])


def _steps(tensor: Tensor) -> list[int]:
    if not has_steps(tensor):
        return []
    sizes_and_steps = zip(tensor.shape, tensor.stride(), strict=True)
    return [step for size, step in sizes_and_steps if size > 1]


_ROWS: dict[str, tuple[int | None, int]] = {
    "embedding": (0, 1),
    "take": (None, 1),
    "index_select": (1, 2),
    "index_add": (1, 2),
    "index_copy": (1, 2),
    "index_fill": (1, 2),
}
"""Positions of the dim (0: the first, without an argument; None: elements of all) and of the
indices, by operation."""
_ALONG = frozenset({"gather", "scatter", "scatter_add", "scatter_reduce"})
"""What has an index for each element, along a dim."""
_BY_LISTS = frozenset({"index", "_unsafe_index", "index_put"})
_SELECT = frozenset(_ROWS) | _ALONG | _BY_LISTS
_ADDS = frozenset({"index_add", "scatter_add", "scatter_reduce"})
_CHANGES = _ADDS | {"scatter", "index_copy", "index_fill", "index_put"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Runs of contiguous bytes of a table, at indices."""

    run_bytes: int
    runs: int
    table_bytes: int
    """Bytes of one part of the table, among whose runs indices choose."""
    parts: int = 1
    changes: bool = False
    """Whether the table is changed there, and not read."""
    adds: bool = False
    """Whether what was there counts, too."""

    def burst_bytes(self, sip: SipSpec) -> int:
        """Return the bytes of the bursts in which DRAM moves the runs.

        Of a part, T bursts of S are asked for: S (1 - (1 - 1/S)^T) different ones, and the others
        again, unless the cache still holds the part.
        """
        burst = sip.cube.hbm_burst_bytes
        if not self.runs:
            return 0
        # Runs begin at multiples of what their length and a burst have in common.
        of_run = (self.run_bytes + burst - math.gcd(self.run_bytes, burst)) / burst
        asked = self.runs * of_run / self.parts
        bursts = max(self.table_bytes / burst, 1.0)
        different = min(asked, 1.0)
        if bursts > 1:
            different = min(asked, -bursts * math.expm1(asked * math.log1p(-1 / bursts)))
        again = (asked - different) * (1 - kept_share(self.table_bytes, sip))
        return round(self.parts * (different + again) * burst)

    def assumes(self, sip: SipSpec) -> bool:
        """Return whether the time depends on how elements lie that indices choose."""
        is_short = self.run_bytes < sip.cube.hbm_burst_bytes and self.runs > self.parts
        return is_short and sip.hbm_stream_ps(self.burst_bytes(sip)) > sip.hbm_latency_ps

    def moved(self, sip: SipSpec) -> tuple[int, int]:
        """Return the bytes that are read from the table and written to it."""
        size = self.burst_bytes(sip)
        if not self.changes:
            return size, 0
        is_whole = self.run_bytes % sip.cube.hbm_burst_bytes == 0
        return (0 if is_whole and not self.adds else size), size


def selection_of(name: str, args: Any) -> Selection | None:
    """Return what an operation selects by indices; None if it does not, or by a mask."""
    short = name.removeprefix("aten.").rstrip("_")
    if short not in _SELECT or not has_steps(args[0]):
        return None
    if short in _ROWS:
        rows = _rows(args, *_ROWS[short])
    elif short in _ALONG:
        rows = _along(*args[:3])
    else:
        rows = _by_lists(*args[:2])
    if rows is None:
        return None
    table = args[0]
    run_bytes, count_bytes, parts = rows
    return Selection(
        run_bytes=run_bytes,
        runs=count_bytes // run_bytes,
        table_bytes=table.nbytes // parts,
        parts=parts,
        changes=short in _CHANGES,
        adds=short in _ADDS or (short == "index_put" and len(args) > 3 and bool(args[3])),
    )


def _rows(args: Any, at_dim: int | None, at_indices: int) -> tuple[int, int, int] | None:
    """Return bytes of a run, of all runs, and how many parts the table has."""
    table, indices = args[0], args[at_indices]
    if not table.dim():
        return None
    if at_dim is None:
        return table.element_size(), indices.numel() * table.element_size(), 1
    dim = args[at_dim] % table.dim() if at_dim else 0
    chosen = table.nbytes // max(table.shape[dim], 1) * indices.numel()
    return _run_bytes(table, dim + 1), chosen, 1


def _along(table: Any, dim: int, indices: Any) -> tuple[int, int, int] | None:
    if not table.dim() or not indices.numel():
        return None
    item = table.element_size()
    chosen = indices.numel() * item
    if dim % table.dim() == table.dim() - 1:
        return item, chosen, indices.numel() // math.prod(indices.shape[-1:])
    run = item
    layout = zip(indices.shape, indices.stride(), table.stride(), strict=True)
    for size, step, apart in reversed([*layout][dim % table.dim() + 1 :]):
        if step or apart * item != run:
            break
        # One index is expanded over the elements beside each other.
        run *= size
    return run, chosen, 1


def _by_lists(table: Any, lists: Any) -> tuple[int, int, int] | None:
    values = {at: item for at, item in enumerate(lists) if item is not None}
    if not values or any(item.dtype in (torch.bool, torch.uint8) for item in values.values()):
        return None
    chosen = math.prod(torch.broadcast_shapes(*(item.shape for item in values.values())))
    of_others = math.prod(size for at, size in enumerate(table.shape) if at not in values)
    return _run_bytes(table, max(values) + 1), chosen * of_others * table.element_size(), 1


def _run_bytes(table: Any, dim: int) -> int:
    """Return how many bytes from a dim on are contiguous."""
    run = table.element_size()
    for size, step in reversed([*zip(table.shape, table.stride(), strict=True)][dim:]):
        if step * table.element_size() != run:
            break
        run *= size
    return max(run, 1)
