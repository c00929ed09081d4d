"""Atomics on data: lanes with the same element are applied one after another (ADR-0031).

The order is that of the programs, and within a program that of the elements. If the old values are
not read, one numpy call does it; otherwise lanes are applied in *rounds* of one lane per element.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kernbench.dtypes import Array
from kernbench.errors import UnsupportedOpError, nearest
from kernbench.replay.steps.access import checked_bytes
from kernbench.replay.steps.frame import Frame
from kernbench.replay.steps.sites import AccessSite

_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "fadd": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "umax": np.maximum,
    "umin": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_UNSIGNED = ("umax", "umin")
KINDS = frozenset({*_UFUNCS, "exch", "cas", "load"})
"""The atomics that replay supports."""


class AtomicStep:
    """A step that updates memory atomically, and returns the old values if they are read."""

    def __init__(
        self, site: AccessSite, kind: str, value: int, compare: int | None, dst: int | None
    ) -> None:
        if kind not in KINDS:
            raise UnsupportedOpError(
                f"the atomic {kind!r} at {site.line} cannot run yet; {nearest(kind, KINDS)}"
            )
        self.site, self.kind = site, kind
        self.value, self.compare, self.dst = value, compare, dst

    def __call__(self, frame: Frame) -> None:
        site, values = self.site, frame.values
        offsets, active = site.dense(frame)
        where, low, high = checked_bytes(site, frame, offsets, active)
        shape = (frame.num_programs, *site.access.shape)
        inside = np.broadcast_to(active, shape).reshape(-1)
        old = None if self.dst is None else np.zeros(inside.shape, site.dtype)
        if high > low:
            on = np.flatnonzero(inside)
            places = np.broadcast_to(where, shape).reshape(-1)[on] - low
            if (places % site.itemsize).any():
                raise site.misaligned()
            elements = site.elements_view(frame, low, high)
            array = np.broadcast_to(values[self.value], shape).reshape(-1)[on]
            compare = None
            if self.compare is not None:
                compare = np.broadcast_to(values[self.compare], shape).reshape(-1)[on]
            places //= site.itemsize
            before = None if frame.changed else elements[places]
            result = change(self.kind, elements, places, array, compare, old is not None)
            if before is not None:
                frame.changed = before.tobytes() != elements[places].tobytes()
            if old is not None:
                old[on] = result
        if old is not None:
            assert self.dst is not None
            values[self.dst] = old.reshape(shape)


def change(
    kind: str,
    elements: Array,
    places: Array,
    array: Array,
    compare: Array | None = None,
    reads: bool = True,
) -> Array | None:
    """Update ``elements[places]`` in order; if ``reads``, return the old value of each lane.

    ``cas`` compares bits, as hardware does.
    """
    dtype = elements.dtype
    if kind in _UNSIGNED or kind == "cas":
        bits = f"u{dtype.itemsize}"
        elements, array = elements.view(bits), np.ascontiguousarray(array).view(bits)
        compare = None if compare is None else np.ascontiguousarray(compare).view(bits)
    if len(places) == 0:
        return np.zeros(0, dtype) if reads else None
    if kind == "load":
        return elements[places]
    if kind == "cas":
        assert compare is not None
        return _compare_and_swap(elements, places, array, compare).view(dtype)
    if not reads:
        if kind == "exch":
            # Of several writes to one element the last one wins.
            elements[places] = array
        else:
            _UFUNCS[kind].at(elements, places, array)
        return None
    return _read_and_change(kind, elements, places, array).view(dtype)


def _read_and_change(kind: str, elements: Array, places: Array, array: Array) -> Array:
    if (places == places[0]).all():
        return _one_element(kind, elements, int(places[0]), array)
    change = np.empty_like(array)
    for lanes in _rounds(places):
        where = places[lanes]
        before = elements[where]
        change[lanes] = before
        elements[where] = array[lanes] if kind == "exch" else _UFUNCS[kind](before, array[lanes])
    return change


def _one_element(kind: str, elements: Array, place: int, array: Array) -> Array:
    """All lanes update one element: their old values are a running result."""
    chain = np.concatenate([elements[place : place + 1], array])
    if kind != "exch":
        if chain.dtype.kind == "V" or chain.dtype.itemsize < 4:
            for lane in range(1, len(chain)):
                chain[lane] = _UFUNCS[kind](chain[lane - 1], chain[lane])
        else:
            chain = _UFUNCS[kind].accumulate(chain, dtype=chain.dtype)
    elements[place] = chain[-1]
    return chain[:-1]


def _compare_and_swap(elements: Array, places: Array, array: Array, compare: Array) -> Array:
    result = np.empty_like(array)
    if (array == array[0]).all() and (compare == compare[0]).all():
        # The first lane of each element decides: all later ones find the same value.
        _, first, which = np.unique(places, return_index=True, return_inverse=True)
        before = elements[places[first]]
        after = np.where(before == compare[0], array[0], before)
        elements[places[first]] = after
        result[:] = after[which]
        result[first] = before
        return result
    for lanes in _rounds(places):
        where = places[lanes]
        before = elements[where]
        result[lanes] = before
        elements[where] = np.where(before == compare[lanes], array[lanes], before)
    return result


def _rounds(places: Array) -> Iterator[Array]:
    """Yield lanes in rounds: the first of each element, then the second, and so on."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    starts = np.flatnonzero(is_first)
    turn = np.arange(len(places)) - starts[np.cumsum(is_first) - 1]
    if not turn.any():
        yield np.arange(len(places))
        return
    for index in range(int(turn.max()) + 1):
        yield order[turn == index]
