"""Gathers with a contiguous axis: whole rows are copied, not elements.

An embedding or a paged cache selects rows by data and reads each whole. All windows of a row's
length over the buffer form one overlapping view, and a row is one index into it. That rows are
contiguous is known beforehand, or found in the addresses (:func:`rows_along`).
"""

from __future__ import annotations

import numpy as np

from kernbench.commands import PROGRAM, Predicate, Separable, Tile, axis_dim
from kernbench.dtypes import Array
from kernbench.replay.steps.frame import Frame
from kernbench.replay.steps.sites import AccessSite


class GatheredRows:
    """The rows of one gathering access: ``length`` elements of each are active."""

    def __init__(
        self, site: AccessSite, starts: Separable, active: Predicate | Tile, length: int
    ) -> None:
        self._site = site
        self._starts, self._active = starts, active
        self.length = length
        rank = len(site.access.shape)
        self._dims = (PROGRAM, *(axis_dim(axis) for axis in range(rank)))

    @staticmethod
    def of(site: AccessSite) -> GatheredRows | None:
        """Return the rows of an access, or None if its last axis is not contiguous."""
        rank = len(site.access.shape)
        if not rank or site.access.gather is None:
            return None
        last = axis_dim(rank - 1)
        width = site.access.shape[-1]
        starts: dict[tuple[int, ...], Array] = {}
        lane: Array | None = None
        for dims, array in site.access.offset.terms.items():
            if last not in dims:
                starts[dims] = array
            elif dims != (last,) or lane is not None:
                return None
            else:
                lane = array
        if lane is None or len(lane) != width or (np.diff(lane) != site.itemsize).any():
            return None
        offset = Separable(site.access.shape, site.access.offset.const + int(lane[0]), starts)
        if isinstance(site.mask, Tile):
            return GatheredRows(site, offset, site.mask, width)
        active, length = _rows_of_mask(site.mask, last, width)
        if length is None:
            return None
        return GatheredRows(site, offset, Predicate(site.access.shape, active), length)

    def locate(self, frame: Frame) -> tuple[Array, Array, Array] | None:
        """Return a view of all windows, the window of each row, and which rows are active.

        None if the rows are not aligned with each other, or are partly active.

        Raises:
            OutOfBoundsError: An active row is not inside the buffer.
        """
        site = self._site
        assert site.access.gather is not None
        gather = frame.values[site.access.gather.slot]
        if gather.shape[-1] != 1:
            return None
        starts = site.at(self._starts, frame).dense(self._dims) + gather
        starts = starts + frame.origin[site.param]
        if isinstance(self._active, Tile):
            active = frame.values[self._active.slot]
            if active.shape[-1] != 1:
                return None
        else:
            active = site.at(self._active, frame).dense(self._dims)
        shape = np.broadcast_shapes(starts.shape, active.shape)
        starts = np.broadcast_to(starts, shape)[..., 0]
        active = np.broadcast_to(active, shape)[..., 0]
        windows = _windows(site, frame, starts[active], self.length)
        return None if windows is None else (*windows, active)


def _windows(
    site: AccessSite, frame: Frame, starts: Array, length: int
) -> tuple[Array, Array] | None:
    """Return a view of all windows of a length, and those that begin at the bytes ``starts``.

    None if they are not aligned with each other.

    Raises:
        OutOfBoundsError: A row is not inside the buffer.
    """
    memory = frame.memory[site.param]
    item, span = site.itemsize, length * site.itemsize
    if not starts.size or not length:
        return np.empty((1, length), site.dtype), starts
    low, high = int(starts.min()), int(starts.max()) + span
    if low < 0 or high > len(memory):
        raise site.out_of_bounds(frame)
    index, rest = np.divmod(starts - low, item)
    if rest.any():
        return None
    count = (high - low - span) // item + 1
    windows: Array = np.ndarray((count, length), site.dtype, memory, low, (item, item))
    return windows, index


_SHORTEST = 8
"""The length of rows below which gathering elements is as fast."""


def rows_along(
    axis: int, site: AccessSite, frame: Frame, offsets: Array, active: Array
) -> tuple[Array, Array, Array] | None:
    """Return what :meth:`GatheredRows.locate` does, for rows of addresses along an axis.

    None if the addresses form no rows there, or if rows are partly active. The rows have the axes
    of the addresses without that one.

    Raises:
        OutOfBoundsError: An active row is not inside the buffer.
    """
    length = offsets.shape[axis]
    if length < _SHORTEST:
        return None
    moved, held = np.moveaxis(offsets, axis, -1), np.moveaxis(active, axis, -1)
    # The first rows alone rule out most candidates.
    if not all(
        (part[..., 1:] - part[..., :-1] == site.itemsize).all() for part in (moved[:1, :1], moved)
    ):
        return None
    if held.shape[-1] != 1 and (held != held[..., :1]).any():
        return None
    starts, held = np.broadcast_arrays(moved[..., 0], held[..., 0])
    windows = _windows(site, frame, starts[held] + site.origin(frame), length)
    return None if windows is None else (*windows, held)


def _rows_of_mask(
    mask: Predicate, last: int, width: int
) -> tuple[dict[tuple[int, ...], Array], int | None]:
    """Return the mask's terms over rows, and how many elements of a row it permits."""
    terms: dict[tuple[int, ...], Array] = {}
    length = width
    for dims, array in mask.terms.items():
        if last not in dims:
            terms[dims] = array
        elif dims != (last,):
            return {}, None
        else:
            count = int(np.broadcast_to(array, (width,)).sum())
            if not array[:count].all():
                return {}, None
            length = min(length, count)
    return terms, length
