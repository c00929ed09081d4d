"""Strands in a run without data: they compute what follows from known memory.

Lengths, pages and expert ids that the host made decide where a kernel goes and how often; what it
multiplies there is unknown. A command that reads something unknown is recorded but not executed,
its results are unknown, and so is memory that it writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.commands import (
    Assert,
    Atomic,
    Command,
    DmaWrite,
    Loop,
    Print,
    Tile,
    Transfer,
    access_of,
)
from kernbench.replay import operands, results

if TYPE_CHECKING:
    from kernbench.interleaved.memory import LaunchMemory
    from kernbench.interleaved.strand import Strand


def known_part(strand: Strand, commands: tuple[Command, ...]) -> tuple[Command, ...]:
    """Return the commands whose results are known, and forget what the others write."""
    memory = strand.launch.memory
    known = {slot for slot in strand.data if slot >= 0}
    part = []
    for command in commands:
        slots = {tile.slot for tile in results(command)}
        if _is_known(command, known, memory):
            part.append(command)
            known |= slots
        else:
            known -= slots
            for slot in slots:
                # Slots are used again.
                strand.data.pop(slot, None)
            _forget_written(command, memory)
    return tuple(part)


def _is_known(command: Command, known: set[int], memory: LaunchMemory) -> bool:
    if isinstance(command, Loop):
        return _is_known_loop(command, known, memory)
    if isinstance(command, Print | Assert):
        # As in all launches without data, they are not reported.
        return False
    if isinstance(command, Transfer) and not memory.knows(access_of(command).param):
        return False
    return all(operand.slot in known for operand in operands(command) if isinstance(operand, Tile))


def _is_known_loop(loop: Loop, known: set[int], memory: LaunchMemory) -> bool:
    inits = [carried.init for carried in loop.carried if isinstance(carried.init, Tile)]
    if any(init.slot not in known for init in inits):
        return False
    inside = known | {carried.arg.slot for carried in loop.carried}
    for command in loop.body:
        if not _is_known(command, inside, memory):
            return False
        inside |= {tile.slot for tile in results(command)}
    return True


def _forget_written(command: Command, memory: LaunchMemory) -> None:
    if isinstance(command, DmaWrite | Atomic):
        memory.forget(access_of(command).param)
    elif isinstance(command, Loop):
        for inner in command.body:
            _forget_written(inner, memory)
