"""Which scalars of a strand come from masked-off lanes, for a watch that asks (ADR-0107).

A strand takes scalars that were data as known. What a watch knew of them is kept here: a number
per program, 0 where the scalar is defined, as in the shadows of tiles. Nothing is kept without a
watch, and nothing while every scalar is defined.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kernbench.commands import (
    PROGRAM,
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    MaskTile,
    Predicate,
    Splat,
    Tile,
    Transfer,
    axis_dim,
)
from kernbench.dtypes import Array
from kernbench.kernel_ir import Held, Op, Value

if TYPE_CHECKING:
    from kernbench.interleaved.strand import Strand

Environment = Mapping[Value, Held]

_ABSORBING = {"arith.andi": False, "arith.ori": True}
_MASKS = {
    "tt.load": 1,
    "tt.store": 2,
    "tt.atomic_rmw": 2,
    "tt.atomic_cas": 3,
    "tt.atomic_load": 1,
    "tt.atomic_store": 2,
}
"""The index of each access's mask; the pointer and the stored value come before it."""
_DECIDES = {
    "scf.if": "the branch",
    "cf.cond_br": "the branch",
    "scf.condition": "the while loop",
    "scf.for": "the number of turns of the loop",
}


class UndefinedScalars:
    """The undefined ones among the known values of a strand, by object identity.

    So they keep their mark where a block takes them as arguments, a call or a loop returns them.
    """

    def __init__(self) -> None:
        self._marked: dict[int, tuple[Held, Array]] = {}

    def __bool__(self) -> bool:
        return bool(self._marked)

    def mark(self, held: Held, shadow: Array) -> Held:
        """Mark a value; returns a copy, because the object may be held elsewhere."""
        own = copy.copy(held)
        self._marked[id(own)] = own, shadow
        return own

    def of(self, held: Held | None) -> Array | None:
        """Return the origin of a value per program of the strand, or None if it is defined."""
        marked = self._marked.get(id(held))
        return None if marked is None else marked[1]

    def take_programs(
        self, other: UndefinedScalars, old: Environment, new: Environment, positions: Array
    ) -> None:
        """Mark the values of a part of the ``other`` one's strand that replace its own."""
        for value, held in old.items():
            shadow = other.of(held)
            if shadow is not None and shadow[positions].any():
                self._marked[id(new[value])] = new[value], shadow[positions]

    def keep(self, used: Iterable[Held]) -> None:
        """Drop the marks of values that are not held any more."""
        ids = {id(held) for held in used}
        self._marked = {key: value for key, value in self._marked.items() if key in ids}


def part_of(strand: Strand, other: Strand, positions: Array) -> None:
    """Mark the undefined scalars of a part of a strand that has been split off."""
    pairs = [(strand.values, other.values)]
    for mine, its in zip(strand.frames, other.frames, strict=True):
        if mine.outer is not None and its.outer is not None:
            pairs.append((mine.outer, its.outer))
    for old, new in pairs:
        other.undefined.take_programs(strand.undefined, old, new, positions)


def note_scalar(strand: Strand, result: Value, slot: int) -> None:
    """Keep what a watch knew of a slot's data once it becomes a known scalar."""
    watch, rows = strand.launch.watch, strand.data.get(~slot)
    if watch is None or rows is None:
        return
    shadow = watch.undefined(rows.array.reshape(-1))
    if shadow.any():
        full = np.broadcast_to(shadow, len(strand.program_ids))
        strand.values[result] = strand.undefined.mark(strand.values[result], full)


def follow(strand: Strand, op: Op) -> None:
    """Mark the results of an operation that computes with undefined scalars."""
    shadow = _combined(strand, op)
    if shadow is None or not shadow.any():
        return
    for result in op.results:
        held = strand.values.get(result)
        if isinstance(held, Tile):
            if held.slot in strand.data:
                _spoil(strand, held, shadow)
        elif held is not None:
            strand.values[result] = strand.undefined.mark(held, shadow)


def _combined(strand: Strand, op: Op) -> Array | None:
    """Return per program whether a result needs an operand that is undefined, and which."""
    helds = [strand.values.get(value) for value in op.operands]
    shadows = [strand.undefined.of(held) for held in helds]
    arrays = [shadow for shadow in shadows if shadow is not None]
    if not arrays or op.name.startswith(("tt.load", "tt.descriptor_load", "tt.atomic")):
        # What a load finds where it is allowed to look is defined.
        return None
    if op.name == "arith.select" and shadows[0] is None:
        chosen = _rows(strand, helds[0])
        sides = zip(shadows[1:], (chosen.any(axis=1), (~chosen).any(axis=1)), strict=True)
        arrays = [np.where(is_used, shadow, 0) for shadow, is_used in sides if shadow is not None]
    total = np.maximum.reduce(arrays)
    if op.name in _ABSORBING and op.results[0].type.is_bool:
        absorbing = _ABSORBING[op.name]
        for shadow, held in zip(shadows, helds, strict=True):
            settles = (_rows(strand, held) == absorbing).all(axis=1)
            total = np.where(settles if shadow is None else settles & (shadow == 0), 0, total)
    return np.asarray(total)


def _rows(strand: Strand, held: Held | None) -> Array:
    """Return a boolean value with a row per program."""
    count = len(strand.program_ids)
    if isinstance(held, MaskTile):
        held = held.values
    if isinstance(held, Predicate):
        dims = (PROGRAM, *(axis_dim(axis) for axis in range(len(held.shape))))
        array = held.dense(dims)
    elif isinstance(held, Splat):
        array = np.full(1, bool(held.value))
    else:
        assert isinstance(held, Tile)
        array = strand.array(held).astype(np.bool_)
    rows = array.reshape(len(array), -1)
    return np.broadcast_to(rows, (count, rows.shape[1]))


def _spoil(strand: Strand, tile: Tile, shadow: Array) -> None:
    """Mark all lanes of a tile as undefined in the programs in which an operand was."""
    spread = shadow.reshape(-1, *(1,) * len(tile.shape))
    before = strand.data.get(~tile.slot)
    strand.keep_shadow(tile.slot, spread if before is None else np.maximum(before.array, spread))


def check_decision(strand: Strand, op: Op, values: Sequence[Value]) -> None:
    """Refuse what an undefined value decides.

    Raises:
        UndefinedValueError: A program of the strand branches on such a value.
        NeedsDataError: One would, if the operation were reached, which is only being tried.
    """
    for value in values:
        shadow = strand.undefined.of(strand.values.get(value))
        if shadow is None or not shadow.any():
            continue
        if strand.trying:
            raise strand.needs_data(op, "it is decided by a value that may be undefined")
        use = f"{_DECIDES.get(op.name, op.name)} at {op.line}", "is decided by an undefined value"
        _refuse(strand, use, shadow)


def check_accesses(strand: Strand, op: Op, commands: Sequence[Command]) -> None:
    """Refuse an undefined scalar in what decides which bytes change, and to what.

    Raises:
        UndefinedValueError: A program with an active lane uses one.
    """
    transfers = [
        command for command in commands if isinstance(command, DmaRead | DmaWrite | Atomic)
    ]
    if not transfers or op.name not in _MASKS:
        return
    mask = _MASKS[op.name]
    for number, value in enumerate(op.operands[: mask + 1]):
        shadow = strand.undefined.of(strand.values.get(value))
        if shadow is None:
            continue
        if number < mask:
            shadow = np.where(_has_active(strand, transfers), shadow, 0)
        if shadow.any():
            use = "is masked by an undefined value"
            if number < mask:
                use = "stores an undefined value" if number else "uses an undefined address"
            _refuse(strand, (f"{op.name} at {op.line}", use), shadow)


def _has_active(strand: Strand, transfers: Sequence[Transfer]) -> Array:
    """Return per program whether some lane of an access is on, as far as that is known by now."""
    result = np.zeros(len(strand.program_ids), np.bool_)
    for command in transfers:
        mask = command.mask
        if isinstance(mask, Predicate) or mask.slot in strand.data:
            result |= _rows(strand, mask).any(axis=1)
    return result


def _refuse(strand: Strand, use: tuple[str, str], shadow: Array) -> None:
    at = int(np.argmax(shadow != 0))
    program = strand.launch.coordinates(int(strand.program_ids[at]))
    assert strand.launch.watch is not None
    strand.launch.watch.refuse_undefined(*use, program, int(shadow[at]))
