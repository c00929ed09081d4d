"""Which axes of which tiles are rows, columns or the loop's axis of a GEMM."""

from __future__ import annotations

from collections.abc import Iterable

from kernbench.commands import Command, DmaRead, DmaWrite, Gemm, Math, Operand, Tile
from kernbench.replay.numerics.elementwise import SHAPE_OPS
from kernbench.replay.plans.merge import Kinds, NotMergeableError

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
