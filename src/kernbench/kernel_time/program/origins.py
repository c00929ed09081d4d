"""What the tiles of a kernel's text are computed from, addresses that are data too.

See docs/model/cache.md.

An address that is no sum of terms, or that was loaded, is a tile that commands made. Timing needs
its shape and not its number: so each tile that an access uses is traced back to what phase 1 knows
and to what was loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kernbench.commands import (
    Access,
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
    Reduce,
    Separable,
    Splat,
    Tile,
    access_of,
    walk,
)
from kernbench.dtypes import DType


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A tile that came from memory."""

    access: Access
    gather: Part | None
    mask: Predicate | Part
    other: Part | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.access.shape

    @property
    def dtype(self) -> DType:
        return self.access.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A tile that an operation made: ``op`` as in :class:`Math`, or what else it was."""

    op: str
    shape: tuple[int, ...]
    dtype: DType
    inputs: tuple[Part, ...]
    attrs: Mapping[str, Any]
    number: int
    """Unique within a program's text."""


Origin = Loaded | Made
Part = Origin | Splat | Param | IndexTile | MaskTile


class TileOrigins:
    """The origins of all tiles, collected in a walk over a kernel's text."""

    def __init__(self) -> None:
        self._by_slot: dict[int, Part] = {}
        self._count = 0

    def of(self, operand: Operand) -> Part:
        """Return what an operand was computed from: itself, unless it is a tile."""
        if not isinstance(operand, Tile):
            return operand
        slot = self._by_slot.get(operand.slot)
        return self._make("", operand, ()) if slot is None else slot

    def note(self, command: Command) -> None:
        """Record the results of a command that is no loop."""
        if isinstance(command, Math):
            result = self._make(command.op, command.dst, command.inputs, command.attrs)
            self._by_slot[command.dst.slot] = result
        elif isinstance(command, DmaRead):
            gather, mask, other = command.source.gather, command.mask, command.other
            self._by_slot[command.dst.slot] = Loaded(
                command.source,
                None if gather is None else self.of(gather),
                self.of(mask) if isinstance(mask, Tile) else mask,
                None if other is None else self.of(other),
            )
        elif isinstance(command, Reduce):
            for dst in command.dsts:
                self._by_slot[dst.slot] = self._make("tt.reduce", dst, command.inputs)
        elif isinstance(command, Gemm):
            self._by_slot[command.dst.slot] = self._make("tt.dot", command.dst, ())
        elif isinstance(command, Atomic) and command.dst is not None:
            self._by_slot[command.dst.slot] = self._make("atomic", command.dst, ())

    def enter(self, loop: Loop) -> None:
        """Give what a loop carries the origins of its initial values."""
        for carried in loop.carried:
            self._by_slot[carried.arg.slot] = self.of(carried.init)

    def leave(self, loop: Loop) -> None:
        """Give a loop's results the origins of what its last iteration yields."""
        for carried in loop.carried:
            self._by_slot[carried.result.slot] = self.of(carried.yielded)

    def _make(
        self,
        op: str,
        dst: Tile,
        inputs: tuple[Operand, ...],
        attrs: Mapping[str, Any] | None = None,
    ) -> Made:
        self._count += 1
        parts = tuple(self.of(tile) for tile in inputs)
        return Made(op, dst.shape, dst.dtype, parts, attrs or {}, self._count)


def uses_tiles(body: tuple[Command, ...]) -> bool:
    """Return whether an address or a mask of a body is data."""
    return any(
        access_of(command).gather is not None or isinstance(command.mask, Tile)
        for command in walk(body)
        if isinstance(command, DmaRead | DmaWrite | Atomic)
    )


def inputs_of(part: Part) -> tuple[Part, ...]:
    """Return what a part was computed from."""
    if isinstance(part, Made):
        return part.inputs
    if isinstance(part, Loaded):
        tiles = (part.gather, part.mask, part.other)
        return tuple(tile for tile in tiles if tile and not isinstance(tile, Predicate))
    return ()


def in_order(part: Part) -> list[Part]:
    """Return a part and all that it was computed from, each once and after its inputs."""
    # Loops that are not rolled make chains that are too long for recursion.
    parts: dict[int, Part] = {}
    pending = [part]
    while pending:
        loaded = pending[-1]
        missing = [i for i in inputs_of(loaded) if id(i) not in parts]
        if missing:
            pending += missing
            continue
        parts.setdefault(id(loaded), loaded)
        pending.pop()
    return list(parts.values())


def leaves(part: Part) -> Iterator[Separable | Predicate]:
    """Yield what phase 1 knows of a part, addresses and masks of loads too."""
    for loaded in in_order(part):
        if isinstance(loaded, IndexTile | MaskTile):
            yield loaded.values
        elif isinstance(loaded, Loaded):
            yield loaded.access.offset
            if isinstance(loaded.mask, Predicate):
                yield loaded.mask


def is_loaded(part: Part) -> bool:
    """Return whether a part depends on data, and not only on what phase 1 knows."""
    return any(
        isinstance(loaded, Loaded | Param) or (isinstance(loaded, Made) and not loaded.inputs)
        for loaded in in_order(part)
    )
