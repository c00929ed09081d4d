"""Which arithmetic of a kernel serves only its addresses and masks.

Arithmetic on integers that phase 1 keeps as sums takes no engine time, so neither does that on
addresses which it does not (docs/model/cache.md): equal addresses cost the same, however they are
written.
"""

from __future__ import annotations

from kernbench.commands import (
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    Gemm,
    Loop,
    Math,
    Operand,
    Predicate,
    Reduce,
    Tile,
    access_of,
)


class Addressing:
    """The integer operations of a body that serve only addresses and masks."""

    def __init__(self, body: tuple[Command, ...]) -> None:
        self._as_data: set[int] = set()
        self._as_address: set[int] = set()
        self._visit(body)

    def holds(self, command: Math) -> bool:
        """Return whether only addresses and masks use an operation's result."""
        dst = id(command.dst)
        return dst in self._as_address and dst not in self._as_data

    def _visit(self, body: tuple[Command, ...]) -> None:
        """Walk a body from its end, and record how tiles are used."""
        for command in reversed(body):
            if isinstance(command, Loop):
                self._loop(command)
            elif isinstance(command, Math):
                self._math(command)
            elif isinstance(command, DmaRead | DmaWrite | Atomic):
                self._add(self._as_address, access_of(command).gather, command.mask)
                if isinstance(command, DmaRead):
                    self._add(self._as_data, command.other)
                elif isinstance(command, DmaWrite):
                    self._add(self._as_data, command.value)
                else:
                    self._add(self._as_data, command.value, command.compare)
            elif isinstance(command, Gemm):
                self._add(self._as_data, command.a, command.b, command.acc)
            elif isinstance(command, Reduce):
                self._add(self._as_data, *command.inputs)

    def _math(self, command: Math) -> None:
        dst = id(command.dst)
        if command.dst.dtype.is_floating_point or dst in self._as_data:
            self._add(self._as_data, *command.inputs)
        if dst in self._as_address:
            self._add(self._as_address, *command.inputs)

    def _loop(self, loop: Loop) -> None:
        uses = (self._as_data, self._as_address)
        for use in uses:
            for carried in loop.carried:
                if id(carried.result) in use:
                    self._add(use, carried.yielded, carried.init, carried.arg)
        before = -1
        while before != sum(map(len, uses)):
            before = sum(map(len, uses))
            self._visit(loop.body)
            for use in uses:
                for item in loop.carried:
                    if id(item.arg) in use:
                        self._add(use, item.yielded, item.init)

    @staticmethod
    def _add(uses: set[int], *operands: Operand | Predicate | None) -> None:
        uses.update(id(operand) for operand in operands if isinstance(operand, Tile))
