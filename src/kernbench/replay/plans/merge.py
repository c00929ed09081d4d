"""Offsets and masks of a whole grid, merged into those of one program with one large tile.

The programs of an outer product are row classes times column classes. A tile's axes are of a
*kind*: rows (``m``), columns (``n``), the loop's axis (``k``) or plain. Merged, an axis of kind
``m`` holds the tiles of all row classes one after the other, and so on; what depends on the
program must depend on its row class along ``m`` and on its column class along ``n`` only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kernbench.commands import (
    PROGRAM,
    Command,
    DmaRead,
    DmaWrite,
    Gemm,
    Math,
    Operand,
    Predicate,
    Separable,
    Tile,
    axis_dim,
    axis_of,
    is_axis,
    is_loop,
)
from kernbench.dtypes import Array
from kernbench.replay.numerics.elementwise import SHAPE_OPS

_UNKNOWN = "?"


class KindTable:
    """Kinds per slot, inferred by propagation through operations in both directions."""

    def __init__(self) -> None:
        self._kinds: dict[int, list[str]] = {}
        self._changed = False

    def of(self, tile: Tile) -> Kinds:
        """Return the kinds of a tile's axes; unknown ones are plain."""
        known = self._kinds.get(tile.slot, [_UNKNOWN] * len(tile.shape))
        return tuple("" if kind == _UNKNOWN else kind for kind in known)

    def infer(self, commands: Iterable[Command]) -> None:
        """Infer all kinds.

        Raises:
            NotMergeableError: An operation moves elements between axes, or kinds contradict.
        """
        commands = list(commands)
        self._changed = True
        while self._changed:
            self._changed = False
            for command in commands:
                self._visit(command)

    def link(self, a: Operand, b: Operand) -> None:
        """Record that two operands have the same axes."""
        axes = [(i, i) for i in range(len(a.shape))]
        self._same(a, b, axes)

    def _visit(self, command: Command) -> None:
        if isinstance(command, Gemm):
            if len(command.dst.shape) != 2:
                raise NotMergeableError
            self._set(command.a, 0, "m")
            self._set(command.a, 1, "k")
            self._set(command.b, 0, "k")
            self._set(command.b, 1, "n")
            self._set(command.dst, 0, "m")
            self._set(command.dst, 1, "n")
            if command.acc is not None:
                self.link(command.acc, command.dst)
        elif isinstance(command, Math):
            self._visit_math(command)
        elif isinstance(command, DmaRead):
            for operand in (command.mask, command.other):
                if isinstance(operand, Tile):
                    self.link(operand, command.dst)
        elif isinstance(command, DmaWrite):
            if isinstance(command.mask, Tile):
                self.link(command.mask, command.value)
        else:
            raise NotMergeableError

    def _visit_math(self, command: Math) -> None:
        dst = command.dst
        if command.op in ("tt.splat", "tt.unsplat"):
            return
        if command.op == "tt.trans":
            order = [int(axis) for axis in command.attrs["order"]]
            self._same(command.inputs[0], dst, [(old, new) for new, old in enumerate(order)])
        elif command.op == "tt.expand_dims":
            axis = int(command.attrs["axis"])
            source = command.inputs[0]
            axes = [(i, i + (i >= axis)) for i in range(len(source.shape))]
            self._same(source, dst, axes)
        elif command.op in SHAPE_OPS and command.op != "tt.broadcast":
            raise NotMergeableError
        else:
            for operand in command.inputs:
                if len(operand.shape) == len(dst.shape):
                    self.link(operand, dst)
                elif len(operand.shape):
                    raise NotMergeableError

    def _same(self, a: Operand, b: Operand, axes: list[tuple[int, int]]) -> None:
        for i, j in axes:
            if a.shape[i] == b.shape[j]:
                if isinstance(a, Tile):
                    self._set(b, j, self._get(a, i))
                if isinstance(b, Tile):
                    self._set(a, i, self._get(b, j))

    def _get(self, tile: Tile, axis: int) -> str:
        return self._kinds[tile.slot][axis] if tile.slot in self._kinds else _UNKNOWN

    def _set(self, operand: Operand, axis: int, kind: str) -> None:
        if not isinstance(operand, Tile) or kind == _UNKNOWN:
            return
        known = self._kinds.setdefault(operand.slot, [_UNKNOWN] * len(operand.shape))
        if known[axis] == _UNKNOWN:
            if kind in known:
                # Two axes of one kind: a diagonal, not an outer product.
                raise NotMergeableError
            known[axis] = kind
            self._changed = True
        elif known[axis] != kind:
            raise NotMergeableError


Kinds = tuple[str, ...]
"""Per axis ``m``, ``n``, ``k`` or ``""`` (plain)."""


class NotMergeableError(Exception):
    """The programs are not an outer product; the general path runs them."""


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """``position[r, c]`` is the program of row class ``r`` and column class ``c``."""

    position: Array
    trip_count: int

    def count(self, kind: str) -> int:
        rows, columns = self.position.shape
        counts = {"m": int(rows), "n": int(columns), "k": self.trip_count, "": 1}
        return counts[kind]

    def merged_shape(self, shape: tuple[int, ...], kinds: Kinds) -> tuple[int, ...]:
        return tuple(n * self.count(kind) for n, kind in zip(shape, kinds, strict=True))

    def merge_offset(self, tensor: Separable, kinds: Kinds) -> Separable:
        """Return the merged tensor.

        Raises:
            NotMergeableError: It depends on the program or the loop in another way.
        """
        parts = self._vectors(tensor, kinds)
        rows, columns = self.position.shape
        by_program = sum(parts.by_program, np.zeros((rows, columns), dtype=np.int64))
        corner = int(by_program[0, 0])
        row, column = by_program[:, 0] - corner, by_program[0, :] - corner
        if (by_program != corner + row[:, None] + column).any():
            raise NotMergeableError
        parts.add_class("m", row)
        parts.add_class("n", column)
        for steps in parts.by_loop:
            parts.add_class("k", steps)
        terms: dict[tuple[int, ...], Array] = {}
        for axis, vectors in parts.axes.items():
            terms[(axis_dim(axis),)] = sum(vectors[1:], vectors[0])
        const = tensor.const + corner + parts.constant
        return Separable(self.merged_shape(tensor.shape, kinds), const, terms)

    def merge_mask(self, mask: Predicate, kinds: Kinds, shape: tuple[int, ...]) -> Predicate:
        """Do as :meth:`merge_offset`; ``shape`` is the tile's (a true mask may have none)."""
        parts = self._vectors(Predicate(shape, mask.terms), kinds)
        for by_program in parts.by_program:
            row: Array = np.logical_or.reduce(by_program, axis=1)
            column: Array = np.logical_or.reduce(by_program, axis=0)
            if (by_program != (row[:, None] & column)).any():
                raise NotMergeableError
            parts.add_class("m", row)
            parts.add_class("n", column)
        for steps in parts.by_loop:
            parts.add_class("k", steps)
        terms: dict[tuple[int, ...], Array] = {}
        for axis, vectors in parts.axes.items():
            terms[(axis_dim(axis),)] = np.logical_and.reduce(vectors)
        return Predicate(self.merged_shape(shape, kinds), terms)

    def _vectors(self, tensor: Separable | Predicate, kinds: Kinds) -> _Parts:
        parts = _Parts(tensor.shape, kinds, self)
        for dims, array in tensor.terms.items():
            axes = [axis_of(dim) for dim in dims if is_axis(dim)]
            loops = [dim for dim in dims if is_loop(dim)]
            has_program = PROGRAM in dims
            if has_program and len(array) == 1:
                array, dims, has_program = array[0], dims[1:], False
            if len(axes) > 1 or len(loops) > 1 or (has_program and loops):
                raise NotMergeableError
            if has_program:
                array = array[self.position]
            if not dims:
                # No element is active: there is nothing to gain.
                raise NotMergeableError
            if not axes:
                (parts.by_program if has_program else parts.by_loop).append(array)
                continue
            (axis,) = axes
            length = tensor.shape[axis]
            array = np.broadcast_to(array, (*array.shape[:-1], length))
            parts.add(axis, self._along(array, kinds[axis], has_program, bool(loops)))
        return parts

    def _along(self, array: Array, kind: str, by_program: bool, by_loop: bool) -> Array:
        """Return the merged vector of ``[rows, columns, length]``, ``[trips, length]`` or one."""
        if by_program:
            if kind == "m" and (array == array[:, :1]).all():
                return np.ravel(array[:, 0])
            if kind == "n" and (array == array[:1]).all():
                return np.ravel(array[0])
            if not (array == array[:1, :1]).all():
                raise NotMergeableError
            array = array[0, 0]
        elif by_loop:
            if kind == "k" and len(array) == self.trip_count:
                return array.reshape(-1)
            if not (array == array[:1]).all():
                raise NotMergeableError
            array = array[0]
        merged: Array = np.tile(array, self.count(kind))
        return merged


class _Parts:
    """The vectors, per axis, of a tensor that is being merged."""

    def __init__(self, shape: tuple[int, ...], kinds: Kinds, classes: Classes) -> None:
        self.shape, self.kinds, self.classes = shape, kinds, classes
        self.axes: dict[int, list[Array]] = {}
        self.by_program: list[Array] = []
        self.by_loop: list[Array] = []
        self.constant = 0

    def add(self, axis: int, vector: Array) -> None:
        self.axes.setdefault(axis, []).append(vector)

    def add_class(self, kind: str, values: Array) -> None:
        """Add a number per class along the axis of that kind."""
        neutral = values.dtype.type(True if values.dtype == np.bool_ else 0)
        if (values == neutral).all():
            return
        if kind not in self.kinds:
            if kind == "k" and values.dtype != np.bool_ and (values == values[0]).all():
                self.constant += int(values[0])
                return
            raise NotMergeableError
        axis = self.kinds.index(kind)
        if kind == "k" and len(values) != self.classes.trip_count:
            raise NotMergeableError
        self.add(axis, np.repeat(values, self.shape[axis]))
