"""Composite GEMM: a grid of load, load, dot loops as one matrix product.

Where the programs of a group are an outer product of row tiles and column tiles, the whole group
is rewritten as *one program* with one large tile per operand: its loads are the matrices A and B,
its loop is gone, its epilogue works on ``[M, N]``. The rewritten group is an ordinary one, and is
executed like any other; groups that do not fit the pattern are left as they are (ADR-0005).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernbench.commands import (
    PROGRAM,
    Access,
    Assert,
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    Gemm,
    IndexTile,
    Loop,
    MaskTile,
    Math,
    Operand,
    Param,
    Predicate,
    Print,
    ProgramGroup,
    Reduce,
    Separable,
    Splat,
    Tile,
    axis_dim,
    axis_of,
    walk,
)
from kernbench.dtypes import Array
from kernbench.kernel_ir import arith
from kernbench.replay.plans.merge import Classes, Kinds, KindTable, NotMergeableError
from kernbench.replay.steps.lifetimes import operands, reads, results

_MOST_ELEMENTS = 1 << 26
"""The most bytes of all programs' results, which are in memory at once."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedProduct:
    """One outer product of programs: its one large program, and the block of each program."""

    classes: Classes
    group: ProgramGroup
    tiles: tuple[Tile, ...]
    """The loop's results, as in one program."""


def shared_products(group: ProgramGroup, loop: Loop) -> list[SharedProduct] | None:
    """Return the outer products that compute a loop for all programs, or None if none do."""
    tiles = tuple(carried.result for carried in loop.carried)
    elements = sum(math.prod(tile.shape) for tile in tiles) * len(group.program_ids)
    if elements > _MOST_ELEMENTS or not _stands_alone(loop):
        return None
    try:
        flat = flatten((loop,))
        kinds = KindTable()
        kinds.infer(flat.commands)
        return [
            SharedProduct(
                classes,
                ProgramGroup(
                    group.program_ids[classes.position[:1, 0]], Merge(flat, kinds, classes).body()
                ),
                tiles,
            )
            for classes in outer_products(group, flat, kinds)
        ]
    except NotMergeableError:
        return None


def _stands_alone(loop: Loop) -> bool:
    """Return whether the loop itself loads all that it computes with."""
    slots = {tile.slot for command in walk(loop.body) for tile in results(command)}
    slots |= {carried.arg.slot for carried in loop.carried}
    if not all(isinstance(carried.init, Splat) for carried in loop.carried):
        return False
    if any(isinstance(o, Param) for c in walk(loop.body) for o in operands(c)):
        return False
    return slots.issuperset(slot for command in loop.body for slot in reads(command))


_KEEPS_ZERO = arith("extf truncf sitofp extsi negf") | {
    "tt.fp_to_fp",
    "tt.trans",
    "tt.broadcast",
    "tt.expand_dims",
}


def composite_groups(group: ProgramGroup) -> list[ProgramGroup]:
    """Return the group rewritten as one program per outer product, or ``[group]`` unchanged."""
    try:
        flat = flatten(group.body)
        kinds = KindTable()
        kinds.infer(flat.commands)
        if not any(isinstance(command, DmaWrite) for command in flat.commands):
            return [group]
        return [
            ProgramGroup(
                group.program_ids[classes.position[:1, 0]], Merge(flat, kinds, classes).body()
            )
            for classes in outer_products(group, flat, kinds)
        ]
    except NotMergeableError:
        return [group]


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """A body whose loop was replaced by its commands, each ``Gemm`` summing over all of it."""

    commands: tuple[Command, ...]
    trip_count: int


def flatten(body: tuple[Command, ...]) -> Flat:
    """Return the body without its loop, if that loop only accumulates products."""
    loops = [command for command in body if isinstance(command, Loop)]
    if not loops:
        if any(isinstance(command, Gemm) for command in body):
            return Flat(body, 1)
        raise NotMergeableError
    if len(loops) > 1 or loops[0].trip_count < 1:
        raise NotMergeableError
    (loop,) = loops
    if loop.trip_count > 1 and any(isinstance(command, Gemm) for command in body):
        # A product outside of the loop sums over its own axis once, not once per iteration.
        raise NotMergeableError
    sums = {id(carried.yielded): carried for carried in loop.carried}
    inner: list[Command] = []
    for command in loop.body:
        if isinstance(command, Gemm) and id(command.dst) in sums:
            carried = sums.pop(id(command.dst))
            if command.acc is not carried.arg:
                raise NotMergeableError
            command = replace(command, dst=carried.result, acc=carried.init)
        elif not isinstance(command, DmaRead | Math):
            raise NotMergeableError
        inner.append(command)
    if sums or not loop.carried:
        raise NotMergeableError
    hidden = {c.arg.slot for c in loop.carried}
    hidden |= {c.yielded.slot for c in loop.carried if isinstance(c.yielded, Tile)}
    where = body.index(loop)
    commands = (*body[:where], *inner, *body[where + 1 :])
    for command in commands:
        if any(isinstance(o, Tile) and o.slot in hidden for o in operands(command)):
            raise NotMergeableError
    return Flat(commands, loop.trip_count)


def outer_products(group: ProgramGroup, flat: Flat, kinds: KindTable) -> list[Classes]:
    """Return outer products that together contain each of the group's programs once."""
    programs = len(group.program_ids)
    rows = _classes(flat, kinds, programs, "m")
    columns = _classes(flat, kinds, programs, "n")
    # Programs of one product share their set of columns, and therefore its first column.
    first = np.full(int(rows.max()) + 1, programs, dtype=np.int64)
    np.minimum.at(first, rows, columns)
    label = first[rows]
    products: list[Classes] = []
    for item in np.unique(label):
        inside = np.flatnonzero(label == item)
        row_ids, r = np.unique(rows[inside], return_inverse=True)
        column_ids, c = np.unique(columns[inside], return_inverse=True)
        if len(inside) != len(row_ids) * len(column_ids):
            raise NotMergeableError
        position = np.full((len(row_ids), len(column_ids)), -1, dtype=np.int64)
        position[r, c] = inside
        if (position < 0).any():
            raise NotMergeableError
        products.append(Classes(position, flat.trip_count))
    if len(products) * 4 > programs and programs > 4:
        # Merging two or three programs at a time costs more than it saves.
        raise NotMergeableError
    return products


def _classes(flat: Flat, kinds: KindTable, programs: int, kind: str) -> Array:
    """Return each program's class: programs with equal loads along an axis of ``kind`` share one.

    Classes are numbered by ascending address, so that merged rows are in memory order.
    """
    columns: list[Array] = []
    for command in flat.commands:
        if isinstance(command, DmaRead):
            own = kinds.of(command.dst)
            if kind in own and "k" in own:
                columns += _by_program(command.source.offset, programs)
                if isinstance(command.mask, Predicate):
                    columns += _by_program(command.mask, programs)
    if not columns:
        return np.zeros(programs, dtype=np.int64)
    key = np.concatenate(columns, axis=1)
    return np.unique(key, axis=0, return_inverse=True)[1].reshape(-1)


def _by_program(tensor: Separable | Predicate, programs: int) -> list[Array]:
    """Return what a tensor adds per program, as columns."""
    program = [
        array.reshape(programs, -1).astype(np.int64)
        for dims, array in tensor.terms.items()
        if dims and dims[0] == PROGRAM and len(array) == programs
    ]
    if isinstance(tensor, Separable) and program:
        return [sum((part[:, :1] for part in program[1:]), program[0][:, :1]), *program]
    return program


class Merge:
    """Rewrites commands for one outer product."""

    def __init__(self, flat: Flat, kinds: KindTable, classes: Classes) -> None:
        self._flat, self._kinds, self._classes = flat, kinds, classes
        self._accesses: dict[int, tuple[Separable, Predicate]] = {}
        self._kept: dict[str, Array] = {}

    def body(self) -> tuple[Command, ...]:
        stored: list[tuple[Kinds, Predicate]] = []
        for command in self._flat.commands:
            if isinstance(command, DmaRead):
                own = self._kinds.of(command.dst)
                self._merge_access(command, command.source, command.mask, own)
            elif isinstance(command, DmaWrite):
                own = self._operand_kinds(command.value, command)
                mask = self._merge_access(command, command.dest, command.mask, own)
                stored.append((own, mask))
        for kind in "mn":
            self._keep(kind, [self._line(mask, own, kind) for own, mask in stored])
        self._keep("k", self._summed())
        return tuple(self._rewrite(command) for command in self._flat.commands)

    def _operand_kinds(self, operand: Operand, command: DmaWrite) -> Kinds:
        if not isinstance(operand, Tile):
            raise NotMergeableError
        own = self._kinds.of(operand)
        if "m" not in own or "n" not in own:
            # Every program of a row stores this, in an order that matters: do not merge.
            raise NotMergeableError
        return own

    def _merge_access(
        self, command: DmaRead | DmaWrite, access: Access, mask: Any, kinds: Kinds
    ) -> Predicate:
        if access.gather is not None or not isinstance(mask, Predicate):
            raise NotMergeableError
        offset = self._classes.merge_offset(access.offset, kinds)
        merged = self._classes.merge_mask(mask, kinds, access.shape)
        self._accesses[id(command)] = (offset, merged)
        return merged

    def _line(self, mask: Predicate, kinds: Kinds, kind: str) -> Array | None:
        """Return a merged mask along the axis of ``kind``, or None if it is all true there."""
        return mask.terms.get((axis_dim(kinds.index(kind)),))

    def _summed(self) -> list[Array | None]:
        """Return where along ``k`` the operands of some product may be nonzero."""
        lines: list[Array | None] = []
        for command in self._flat.commands:
            if not isinstance(command, Gemm):
                continue
            a, b = self._zero_line(command.a), self._zero_line(command.b)
            lines.append(None if a is None or b is None else a | b)
        return lines

    def _zero_line(self, operand: Operand) -> Array | None:
        """Return where along ``k`` an operand is loaded, if it is zero elsewhere."""
        while True:
            source = self._definition(operand)
            if isinstance(source, Math) and source.op in _KEEPS_ZERO:
                operand = source.inputs[0]
                continue
            break
        if not isinstance(source, DmaRead):
            return None
        other = source.other
        if other is not None and not (isinstance(other, Splat) and other.value == 0):
            return None
        kinds = self._kinds.of(source.dst)
        if "k" not in kinds:
            return None
        return self._line(self._accesses[id(source)][1], kinds, "k")

    def _definition(self, operand: Operand) -> Command | None:
        for command in self._flat.commands:
            if (
                not isinstance(command, DmaWrite | Atomic | Loop | Reduce | Print | Assert)
                and command.dst is operand
            ):
                return command
        return None

    def _keep(self, kind: str, lines: list[Array | None]) -> None:
        """Drop the positions along ``kind`` that no line needs."""
        needed = [line for line in lines if line is not None]
        if not lines or len(needed) < len(lines):
            return
        if len({line.shape for line in needed}) > 1:
            # Products of different widths in one kernel have no common positions.
            raise NotMergeableError
        every = np.logical_or.reduce(needed)
        if not every.any():
            # Nothing is computed at all.
            raise NotMergeableError
        if not every.all():
            self._kept[kind] = np.flatnonzero(every)

    def _trimmed(self, tensor: Any, kinds: Kinds) -> Any:
        """Return a merged tensor at the kept positions."""
        shape = self._trimmed_shape(tensor.shape, kinds)
        terms: dict[tuple[int, ...], Array] = {}
        for dims, array in tensor.terms.items():
            kept = self._kept.get(kinds[axis_of(dims[0])])
            terms[dims] = array if kept is None else array[kept]
        if isinstance(tensor, Separable):
            return Separable(shape, tensor.const, terms)
        return Predicate(shape, {d: a for d, a in terms.items() if not a.all()})

    def _trimmed_shape(self, shape: tuple[int, ...], kinds: Kinds) -> tuple[int, ...]:
        return tuple(
            len(self._kept[kind]) if kind in self._kept else n
            for n, kind in zip(shape, kinds, strict=True)
        )

    def _shape(self, shape: tuple[int, ...], kinds: Kinds) -> tuple[int, ...]:
        return self._trimmed_shape(self._classes.merged_shape(shape, kinds), kinds)

    def _tile(self, tile: Tile) -> Tile:
        return Tile(tile.slot, self._shape(tile.shape, self._kinds.of(tile)), tile.dtype)

    def _operand(self, operand: Operand, kinds: Kinds) -> Operand:
        """Return a merged operand; one that is not a tile has the kinds of its user."""
        if isinstance(operand, Tile):
            return self._tile(operand)
        if len(operand.shape) != len(kinds):
            kinds = ("",) * len(operand.shape)
        kinds = tuple("" if n == 1 else k for n, k in zip(operand.shape, kinds, strict=True))
        shape = self._shape(operand.shape, kinds)
        if isinstance(operand, Splat):
            return Splat(operand.value, shape, operand.dtype)
        if isinstance(operand, Param):
            return Param(operand.index, shape, operand.dtype)
        if isinstance(operand, IndexTile):
            values = self._classes.merge_offset(operand.values, kinds)
            return IndexTile(self._trimmed(values, kinds), operand.dtype)
        mask = self._classes.merge_mask(operand.values, kinds, operand.shape)
        return MaskTile(self._trimmed(mask, kinds))

    def _rewrite(self, command: Command) -> Command:
        if isinstance(command, DmaRead):
            own = self._kinds.of(command.dst)
            offset, mask = (self._trimmed(t, own) for t in self._accesses[id(command)])
            other = None if command.other is None else self._operand(command.other, own)
            source = Access(command.source.param, offset, command.source.dtype)
            return DmaRead(self._tile(command.dst), source, mask, other, command.line)
        if isinstance(command, DmaWrite):
            own = self._operand_kinds(command.value, command)
            offset, mask = (self._trimmed(t, own) for t in self._accesses[id(command)])
            dest = Access(command.dest.param, offset, command.dest.dtype)
            return DmaWrite(dest, self._operand(command.value, own), mask, command.line)
        if isinstance(command, Gemm):
            a = self._operand(command.a, ("m", "k"))
            b = self._operand(command.b, ("k", "n"))
            acc = None if command.acc is None else self._operand(command.acc, ("m", "n"))
            return replace(command, dst=self._tile(command.dst), a=a, b=b, acc=acc)
        if not isinstance(command, Math):
            raise NotMergeableError
        own = self._kinds.of(command.dst)
        inputs = tuple(
            self._operand(tile, self._input_kinds(command, own)) for tile in command.inputs
        )
        return Math(
            self._tile(command.dst), command.op, inputs, command.cost, command.line, command.attrs
        )

    def _input_kinds(self, command: Math, kinds: Kinds) -> Kinds:
        """Return the kinds of an input that is not a tile, from those of the result."""
        if command.op == "tt.trans":
            order = [int(axis) for axis in command.attrs["order"]]
            return tuple(kinds[order.index(axis)] for axis in range(len(kinds)))
        if command.op == "tt.expand_dims":
            axis = int(command.attrs["axis"])
            return (*kinds[:axis], *kinds[axis + 1 :])
        return kinds
