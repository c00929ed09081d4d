"""Loads and stores of a plan: views of regular tiles, gathers of others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kernbench.commands import Tile
from kernbench.dtypes import Array
from kernbench.errors import OutOfBoundsError
from kernbench.replay.numerics.ops.arith import select
from kernbench.replay.steps.frame import Frame
from kernbench.replay.steps.geometry import Box, Geometry, Indices, Stretch
from kernbench.replay.steps.rows import GatheredRows, rows_along
from kernbench.replay.steps.sites import AccessSite


class TileLoad:
    """A step that loads a tile into its slot: a view of memory if the tile is regular."""

    def __init__(
        self, site: AccessSite, slot: int, other: int | None, fill: Any, hazards: tuple[int, ...]
    ) -> None:
        self.site, self.slot = site, slot
        self.other, self.fill = other, fill
        self.hazards = hazards
        self.dynamic = site.access.gather is not None
        self.rows = GatheredRows.of(site)
        self.data_mask = site.mask.slot if isinstance(site.mask, Tile) else None

    def __call__(self, frame: Frame) -> None:
        site = self.site
        try:
            if self.dynamic:
                value = None if self.rows is None else self._gathered_rows(frame, self.rows)
                frame.values[self.slot] = self._gathered(frame) if value is None else value
                return
            geometry = site.geometry(frame)
            box = geometry.whole
            if box is None or self.data_mask is not None:
                frame.values[self.slot] = self._collected(frame, geometry)
                return
            value = site.box_view(frame, box, site.origin(frame))
        except OutOfBoundsError:
            if frame.outside is None:
                raise
            frame.outside.warn(site.line, partial(site.leaves_memory, frame))
            frame.values[self.slot] = self._inside(frame)
            return
        for param in self.hazards:
            if frame.memory[param] is frame.memory[site.param]:
                value = value.copy()
                break
        frame.values[self.slot] = value

    def _collected(self, frame: Frame, geometry: Geometry) -> Array:
        site = self.site
        if self.data_mask is not None:
            try:
                value = self._parts(frame, geometry)
            except OutOfBoundsError:
                # Lanes that data masks off may point anywhere.
                return self._gathered(frame)
            active = frame.values[self.data_mask]
        else:
            value = self._parts(frame, geometry)
            if self.other is None:
                return value
            active = site.dense(frame)[1]
        other = self.fill if self.other is None else frame.values[self.other]
        return select(active, value, np.asarray(other, dtype=site.dtype))

    def _parts(self, frame: Frame, geometry: Geometry) -> Array:
        value: Array = np.empty(geometry.shape, self.site.dtype)
        self.collect(frame, geometry, value)
        return value

    def collect(self, frame: Frame, geometry: Geometry, value: Array) -> None:
        """Write the elements of all parts into a contiguous array."""
        site = self.site
        if not geometry.covers:
            value.fill(self.fill)
        origin = site.origin(frame)
        for part in geometry.parts:
            if isinstance(part, Box):
                view = site.box_view(frame, part, origin)
                if view.shape != part.merged:
                    view = view.reshape(part.merged)
                value[part.where] = view
                continue
            flat = value.reshape(-1)
            if isinstance(part, Stretch):
                view = site.box_view(frame, part, origin)
                flat[part.first : part.first + part.size].reshape(view.shape)[...] = view
            else:
                flat[part.positions] = self._elements(frame, part, origin)

    def _elements(self, frame: Frame, part: Indices, origin: int) -> Array:
        site = self.site
        if part.elements is None:
            return _read_bytes(frame.memory[site.param], part.offsets + origin + part.low, site)
        return site.elements_view(frame, origin + part.low, origin + part.high).take(part.elements)

    def _gathered_rows(self, frame: Frame, rows: GatheredRows) -> Array | None:
        if self.other is not None:
            return None
        located = rows.locate(frame)
        if located is None:
            return None
        windows, index, active = located
        width = self.site.access.shape[-1]
        if rows.length == width and len(index) == active.size:
            return windows[index].reshape(*active.shape, width)
        value: Array = np.empty((*active.shape, width), self.site.dtype)
        value.fill(self.fill)
        value[..., : rows.length][active] = windows[index]
        return value

    def _inside(self, frame: Frame) -> Array:
        """Return elements inside of the buffer, zeros outside, and values of masked-off lanes."""
        site = self.site
        offsets, active = site.dense(frame)
        where, active = np.broadcast_arrays(offsets + site.origin(frame), active)
        memory = frame.memory[site.param]
        inside = active & (where >= 0) & (where + site.itemsize <= len(memory))
        value: Array = np.zeros(where.shape, site.dtype)
        value[inside] = _read_bytes(memory, where[inside], site)
        other = self.fill if self.other is None else frame.values[self.other]
        return select(active, value, np.asarray(other, dtype=site.dtype))

    def _gathered(self, frame: Frame) -> Array:
        site = self.site
        offsets, active = site.dense(frame)
        other = self.fill if self.other is None else frame.values[self.other]
        shape = np.broadcast_shapes(offsets.shape, active.shape, np.shape(other))
        rows = self._rows_in(frame, offsets, active, np.asarray(other, dtype=site.dtype), shape)
        if rows is not None:
            return rows
        where, low, high = checked_bytes(site, frame, offsets, active)
        value: Array = np.empty(shape, site.dtype)
        if high == low:
            value[...] = other
            return value
        everywhere = bool(active.all())
        if not everywhere:
            where = np.where(active, where, low)
        if ((where - low) % site.itemsize).any():
            loaded = _read_bytes(frame.memory[site.param], where, site)
        else:
            loaded = site.elements_view(frame, low, high).take((where - low) // site.itemsize)
        if everywhere:
            return loaded
        return select(active, loaded, np.asarray(other, dtype=site.dtype))

    def _rows_in(
        self, frame: Frame, offsets: Array, active: Array, other: Array, shape: tuple[int, ...]
    ) -> Array | None:
        """Return the tile if its addresses form whole rows along an axis."""
        for axis in reversed(range(1, len(shape))):
            located = rows_along(axis, self.site, frame, offsets, active)
            if located is None:
                continue
            windows, index, held = located
            rows = (*shape[:axis], *shape[axis + 1 :])
            if held.shape != rows:
                return None
            if len(index) == held.size:
                value: Array = windows[index].reshape(*rows, shape[axis])
            else:
                value = np.empty((*rows, shape[axis]), self.site.dtype)
                value[...] = np.moveaxis(np.broadcast_to(other, shape), axis, -1)
                value[held] = windows[index]
            return np.moveaxis(value, -1, axis)
        return None


class Store:
    """A step that writes a tile to memory, programs in order where they overlap."""

    def __init__(self, site: AccessSite, value: int) -> None:
        self.site, self.value = site, value
        self.dynamic = site.access.gather is not None or isinstance(site.mask, Tile)
        self.rows = GatheredRows.of(site)

    def __call__(self, frame: Frame) -> None:
        self.store(frame, frame.values[self.value])

    def store(self, frame: Frame, value: Array) -> None:
        """Write a value ``[programs, *tile]`` where the mask holds."""
        site = self.site
        if self.dynamic:
            self._scatter(frame, value)
            return
        geometry = site.geometry(frame)
        if len(value) > geometry.lead:
            # All programs write the same place: the last one wins.
            value = value[-1:]
        origin = site.origin(frame)
        box = geometry.whole
        if box is not None:
            site.box_view(frame, box, origin)[...] = value
            return
        for part in geometry.parts:
            if isinstance(part, Box):
                cut = _cut(value, part.where)
                view = site.box_view(frame, part, origin)
                if len(cut) == 1:
                    cut = cut[0]
                elif view.shape != part.merged:
                    cut = np.broadcast_to(cut, part.merged).reshape(view.shape)
                view[...] = cut
                continue
            flat = np.broadcast_to(value, geometry.shape).reshape(-1)
            if isinstance(part, Stretch):
                view = site.box_view(frame, part, origin)
                view[...] = flat[part.first : part.first + part.size].reshape(view.shape)
            else:
                if len(part.positions) != len(flat):
                    flat = flat[part.positions]
                self._put(frame, part, origin, flat)

    def _put(self, frame: Frame, part: Indices, origin: int, flat: Array) -> None:
        site = self.site
        if part.elements is None:
            _write_bytes(frame.memory[site.param], part.offsets + origin + part.low, flat, site)
        else:
            site.elements_view(frame, origin + part.low, origin + part.high)[part.elements] = flat

    def _scatter_rows(
        self, frame: Frame, value: Array, located: tuple[Array, Array, Array] | None
    ) -> bool:
        if located is None:
            return False
        windows, index, active = located
        shape = (frame.num_programs, *self.site.access.shape)
        if active.shape != shape[:-1]:
            return False
        if len(index):
            windows[index] = np.broadcast_to(value, shape)[..., : windows.shape[-1]][active]
        return True

    def _scatter(self, frame: Frame, value: Array) -> None:
        site = self.site
        if self.rows is not None and self._scatter_rows(frame, value, self.rows.locate(frame)):
            return
        offsets, active = site.dense(frame)
        if offsets.ndim > 1:
            # Along other axes, overlapping lanes would not be written in order.
            located = rows_along(offsets.ndim - 1, site, frame, offsets, active)
            if self._scatter_rows(frame, value, located):
                return
        where, low, high = checked_bytes(site, frame, offsets, active)
        if high == low:
            return
        shape = (frame.num_programs, *site.access.shape)
        inside = np.broadcast_to(active, shape).reshape(-1)
        flat = np.broadcast_to(value, shape).reshape(-1)[inside]
        where = np.broadcast_to(where, shape).reshape(-1)[inside]
        if ((where - low) % site.itemsize).any():
            _write_bytes(frame.memory[site.param], where, flat, site)
        else:
            site.elements_view(frame, low, high)[(where - low) // site.itemsize] = flat


class StoreResult:
    """A step that computes a tile straight into memory, where that is one plain view."""

    def __init__(
        self,
        store: Store,
        function: Callable[..., Array],
        into: Callable[..., Any],
        inputs: tuple[int, ...],
    ) -> None:
        self.store, self.function, self.into = store, function, into
        self.inputs = inputs

    def __call__(self, frame: Frame) -> None:
        values = frame.values
        inputs = [values[slot] for slot in self.inputs]
        store = self.store
        if not store.dynamic:
            site = store.site
            geometry = site.geometry(frame)
            box = geometry.whole
            if box is not None and (geometry.lead > 1 or all(len(value) == 1 for value in inputs)):
                self.into(*inputs, out=site.box_view(frame, box, site.origin(frame)))
                return
        store.store(frame, self.function(*inputs))


class StoreLoaded:
    """A step that loads a tile straight into where it is stored, if that is one plain view.

    A tile that has to be collected, as that of a transposition, is thus copied once.
    """

    def __init__(self, store: Store, load: TileLoad) -> None:
        self.store, self.load = store, load
        self.is_plain = not (
            store.dynamic
            or load.dynamic
            or load.data_mask is not None
            or load.other is not None
            or load.site.dtype != store.site.dtype
        )

    def __call__(self, frame: Frame) -> None:
        if self.is_plain and self._is_copied(frame):
            return
        self.load(frame)
        self.store(frame)

    def _is_copied(self, frame: Frame) -> bool:
        source, site = self.load.site, self.store.site
        if frame.memory[source.param] is frame.memory[site.param]:
            return False
        geometry, box = source.geometry(frame), site.geometry(frame).whole
        if geometry.whole is not None or box is None or box.view_shape != geometry.shape:
            return False
        target = site.box_view(frame, box, site.origin(frame))
        if not target.flags.c_contiguous:
            return False
        try:
            self.load.collect(frame, geometry, target)
        except OutOfBoundsError:
            # The load says what is to become of that.
            return False
        return True


def _cut(value: Array, where: tuple[slice, ...]) -> Array:
    """Return the slices of a value; an axis of length 1 is not sliced."""
    if 1 in value.shape:
        where = tuple(
            slice(None) if length == 1 else item
            for length, item in zip(value.shape, where, strict=True)
        )
    return value[where]


def checked_bytes(
    site: AccessSite, frame: Frame, offsets: Array, active: Array
) -> tuple[Array, int, int]:
    """Return byte positions in the buffer, and the checked range of the active ones."""
    where = offsets + site.origin(frame)
    if active.all():
        inside = where
    else:
        shape = np.broadcast_shapes(where.shape, active.shape)
        inside = np.broadcast_to(where, shape)[np.broadcast_to(active, shape)]
    if not inside.size:
        return where, 0, 0
    low, high = int(inside.min()), int(inside.max()) + site.itemsize
    if low < 0 or high > len(frame.memory[site.param]):
        raise site.out_of_bounds(frame)
    return where, low, high


def _read_bytes(memory: Array, where: Array, site: AccessSite) -> Array:
    """Return elements at byte positions that are not multiples of the item size apart."""
    loaded = memory[where[..., None] + np.arange(site.itemsize)]
    return loaded.view(site.dtype)[..., 0]


def _write_bytes(memory: Array, where: Array, flat: Array, site: AccessSite) -> None:
    raw = np.ascontiguousarray(flat).view(np.uint8).reshape(*flat.shape, site.itemsize)
    memory[where[..., None] + np.arange(site.itemsize)] = raw
