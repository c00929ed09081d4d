"""The bytes that the active lanes of an access touch, and the programs of these lanes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kernbench.commands import PROGRAM, Tile, axis_dim, is_loop
from kernbench.memory import Buffer
from kernbench.replay import AccessSite, Frame

Array = npt.NDArray[Any]

_KEPT_BYTES = 64 << 20


class Lanes(NamedTuple):
    """Active lanes, in program order."""

    where: Array
    """First byte in the buffer."""
    positions: Array
    """Position in ``[programs of the chunk, *tile]``, flat."""
    programs: Array
    """Linear id of the program."""


class LaneFinder:
    """Finds the active lanes of one access, and keeps those that do not depend on data."""

    def __init__(self, site: AccessSite) -> None:
        self.site = site
        self._dims = (PROGRAM, *(axis_dim(axis) for axis in range(len(site.access.shape))))
        self._per_program = max(int(np.prod(site.access.shape, dtype=np.int64)), 1)
        self.is_known = site.access.gather is None and not isinstance(site.mask, Tile)
        dims = {*site.access.offset.dims, *site.predicate.dims}
        self._loops = [dim - 1 for dim in dims if is_loop(dim)]
        self._kept: dict[Any, Lanes] = {}
        self._kept_bytes = 0
        self._overlap: dict[Any, bool] = {}
        self._found: Lanes | None = None

    def forget(self, frame: Frame) -> None:
        """The step after which lanes are found anew: they are of one execution of an access."""
        self._found = None

    def find(self, frame: Frame) -> Lanes:
        """Return the active lanes, which are inside the buffer; kept until :meth:`forget`.

        Raises:
            OutOfBoundsError: They are not, and that is not allowed.
        """
        if self._found is None:
            self._found = self._find(frame)
        return self._found

    def _find(self, frame: Frame) -> Lanes:
        site = self.site
        relative = self._relative(frame)
        where = relative.where + frame.origin[site.param]
        size = len(frame.memory[site.param])
        if len(where) and (where.min() < 0 or where.max() + site.itemsize > size):
            if site.is_store or frame.outside is None:
                raise site.out_of_bounds(frame)
            inside = (where >= 0) & (where + site.itemsize <= size)
            return Lanes(where[inside], relative.positions[inside], relative.programs[inside])
        return Lanes(where, relative.positions, relative.programs)

    def _relative(self, frame: Frame) -> Lanes:
        """Return the lanes with bytes relative to the parameter's address."""
        if not self.is_known:
            return self._compute(frame)
        key = self._key(frame)
        relative = self._kept.get(key)
        if relative is None:
            relative = self._compute(frame)
            size = sum(array.nbytes for array in relative)
            if self._kept_bytes + size <= _KEPT_BYTES:
                self._kept[key] = relative
                self._kept_bytes += size
        return relative

    def _key(self, frame: Frame) -> Any:
        """Return the key that known lanes depend on."""
        return (frame.chunk, *[frame.iterations[loop] for loop in self._loops])

    def overlapping(self, frame: Frame) -> Lanes | None:
        """Return the active lanes if two of them touch the same byte, otherwise None."""
        if not self.is_known:
            position = self.find(frame)
            return position if _have_common_bytes(position.where, self.site.itemsize) else None
        key = self._key(frame)
        overlap = self._overlap.get(key)
        if overlap is None:
            where = self._relative(frame).where
            overlap = self._overlap[key] = _have_common_bytes(where, self.site.itemsize)
        return self.find(frame) if overlap else None

    def _compute(self, frame: Frame) -> Lanes:
        site = self.site
        offsets, active = site.dense(frame)
        shape = (frame.num_programs, *site.access.shape)
        where = np.broadcast_to(offsets, shape).reshape(-1)
        where = where + (site.origin(frame) - frame.origin[site.param])
        if active.all():
            positions: Array = np.arange(len(where))
        else:
            positions = np.flatnonzero(np.broadcast_to(active, shape))
            where = where[positions]
        chunks = site.chunks
        first, last = chunks.bounds[frame.chunk : frame.chunk + 2]
        programs = chunks.program_ids[first:last][positions // self._per_program]
        return Lanes(where, positions, programs)

    def active(self, frame: Frame) -> Array:
        """Return the activity of all lanes, ``[programs, *tile]`` with length 1 where constant."""
        site = self.site
        if isinstance(site.mask, Tile):
            return np.asarray(frame.values[site.mask.slot])
        return site.at(site.predicate, frame).dense(self._dims)

    def program(self, frame: Frame, position: int) -> tuple[int, int, int]:
        """Return the grid coordinates of the program that owns a flat position."""
        chunks = self.site.chunks
        return chunks.program(chunks.bounds[frame.chunk] + position // self._per_program)

    def pick(self, shadow: Array, frame: Frame, positions: Array) -> Array:
        """Return the elements of a shadow or a value at flat positions."""
        shape = (frame.num_programs, *self.site.access.shape)
        return np.asarray(np.broadcast_to(shadow, shape).reshape(-1)[positions])

    def buffer(self, frame: Frame) -> Buffer:
        return frame.pointers[self.site.param].buffer


def _have_common_bytes(where: Array, itemsize: int) -> bool:
    if (where[1:] - where[:-1] >= itemsize).all():
        return False
    ordered = np.sort(where)
    return bool((ordered[1:] - ordered[:-1] < itemsize).any())


def mark_written(written: Array, where: Array, itemsize: int) -> None:
    """Count ``itemsize`` bytes at each of ``where`` as written."""
    words = _words(written, where, itemsize)
    if words is not None:
        words[where // itemsize] = np.iinfo(words.dtype).max
        return
    for byte in range(itemsize):
        written[where + byte] = 255


def unwritten_lanes(written: Array, where: Array, itemsize: int) -> Array | None:
    """Return which accesses touch an unwritten byte, or None if none does."""
    words = _words(written, where, itemsize)
    if words is not None:
        missing = words[where // itemsize] != np.iinfo(words.dtype).max
    else:
        missing = np.zeros(len(where), np.bool_)
        for byte in range(itemsize):
            missing |= written[where + byte] == 0
    return missing if missing.any() else None


def _words(written: Array, where: Array, itemsize: int) -> Array | None:
    """Return the counts as whole elements, or None if accesses are not aligned to them."""
    if len(written) % itemsize or (where % itemsize).any():
        return None
    return written.view(f"u{itemsize}")
