"""Which arithmetic of a program costs a GPU no instruction of its own.

A multiplication whose only reader adds is part of that addition (FFMA, IMAD), a sign or an absolute
value a modifier of who reads it. Of two bit operations one after the other three operands go into
one instruction (LOP3). Both halves of an integer product are one instruction's result.
Source: CUDA Binary Utilities, instruction sets of 8.0 and 9.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kernbench.commands import (
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    Loop,
    Math,
    Operand,
    Predicate,
    Tile,
    access_of,
    walk,
)

_BITS = ("arith.andi", "arith.ori", "arith.xori")
_READERS = {
    "arith.mulf": ("arith.addf", "arith.subf"),
    "arith.muli": ("arith.addi", "arith.subi"),
    **dict.fromkeys(_BITS, _BITS),
}
"""What an operation is a part of, if that alone reads it."""
_MODIFIERS = ("arith.negf", "math.absf")
_HIGH_HALF, _LOW_HALF = "tt.mulhiui", "arith.muli"


def fused(body: tuple[Command, ...]) -> set[int]:
    """Return the ids of the tiles whose operations are part of other instructions."""
    reads: Counter[int] = Counter()
    makers: dict[int, Math] = {}
    products = set()
    for command in walk(body):
        reads.update(id(tile) for tile in _reads(command) if isinstance(tile, Tile))
        if isinstance(command, Math):
            makers[id(command.dst)] = command
            if command.op == _HIGH_HALF:
                products.add(frozenset(map(id, command.inputs)))
    numbers: set[int] = set()
    holding: set[int] = set()
    for result, command in makers.items():
        is_low = command.op == _LOW_HALF and frozenset(map(id, command.inputs)) in products
        if is_low or command.op in _MODIFIERS:
            numbers.add(result)
        for tile in command.inputs:
            maker = makers.get(id(tile))
            if maker is None or reads[id(tile)] > 1 or id(tile) in holding:
                continue
            if command.op in _READERS.get(maker.op, ()):
                # An instruction has room for one more operand.
                numbers.add(id(tile))
                holding.add(result)
                break
    return numbers


def _reads(command: Command) -> Iterator[Operand | Predicate | None]:
    """Yield what a command reads; a loop, what it carries."""
    if isinstance(command, Loop):
        for carried in command.carried:
            yield carried.init
            yield carried.yielded
        return
    if isinstance(command, DmaRead | DmaWrite | Atomic):
        yield access_of(command).gather
    yield from getattr(command, "inputs", ())
    for name in ("a", "b", "acc", "other", "mask", "value", "compare"):
        yield getattr(command, name, None)
