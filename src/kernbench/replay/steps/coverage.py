"""Which bytes a kernel certainly stores, so that they need not be initialized before it runs."""

from __future__ import annotations

from collections.abc import Iterable

from kernbench.commands import DmaRead, KernelTrace
from kernbench.replay.steps.access import Store
from kernbench.replay.steps.frame import Frame
from kernbench.replay.steps.geometry import Box
from kernbench.replay.steps.sites import Chunks

Range = tuple[int, int]


def only_stored(trace: KernelTrace) -> frozenset[int]:
    """Return the pointer parameters that no command of the trace reads through."""
    read = {c.source.param for c in trace.commands() if isinstance(c, DmaRead)}
    return frozenset(trace.pointer_params) - read


def stored_ranges(stores: Iterable[tuple[Store, Chunks]]) -> dict[int, Range]:
    """Return, by parameter, the range of bytes that its stores fill without gaps.

    Bytes are relative to the parameter's address. Parameters with gaps, or with stores whose
    address depends on data or on a loop, are left out.
    """
    pairs: dict[int, list[Range]] = {}
    irregular: set[int] = set()
    for store, chunks in stores:
        ranges = _ranges(store, chunks)
        if ranges is None:
            irregular.add(store.site.param)
        else:
            pairs.setdefault(store.site.param, []).extend(ranges)
    merged = {p: _joined(ranges) for p, ranges in pairs.items() if p not in irregular and ranges}
    return {param: value for param, value in merged.items() if value is not None}


def _ranges(store: Store, chunks: Chunks) -> list[Range] | None:
    site = store.site
    if store.dynamic or not site.fixed:
        return None
    frame = Frame({}, {}, {})
    ranges: list[Range] = []
    for chunk in range(len(chunks)):
        frame.chunk = chunk
        frame.num_programs = chunks.bounds[chunk + 1] - chunks.bounds[chunk]
        for part in site.geometry(frame).parts:
            pair = _run(part, site.itemsize) if isinstance(part, Box) else None
            if pair is None:
                return None
            ranges.append(pair)
    return ranges


def _run(box: Box, itemsize: int) -> Range | None:
    """Return the byte range of a box, or None if it is not contiguous."""
    dims = zip(box.view_shape, box.view_strides, strict=True)
    length = itemsize
    for count, stride in sorted(((c, s) for c, s in dims if c != 1), key=lambda dim: dim[1]):
        if stride != length:
            return None
        length *= count
    return box.offset, box.offset + length


def _joined(ranges: list[Range]) -> Range | None:
    """Return the union of ranges, or None if it has gaps."""
    first, *rest = sorted(ranges)
    low, high = first
    for start, end in rest:
        if start > high:
            return None
        high = max(high, end)
    return low, high
