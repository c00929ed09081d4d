"""Packs transfers that depend on each other into steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.collectives.plan import shared_index
from kernbench.collectives.schedule import Step


@dataclass(frozen=True, slots=True)
class Move:
    """A transfer of one chunk."""

    src: int
    dst: int
    chunk: int
    reduce: bool
    waits: tuple[int, ...]
    """Positions in the list of the transfers that it depends on."""


def pack(moves: Sequence[Move]) -> tuple[Step, ...]:
    """Return steps with all the moves, each as early as its place in the list allows.

    A rank sends one chunk and receives one in a step; of those that could go, the one that comes
    first in the list does. Copies and reductions are different steps of one round.
    """
    step_of = [-1] * len(moves)
    left = list(range(len(moves)))
    steps: list[Step] = []
    number = 0
    while left:
        sending: set[int] = set()
        receiving: set[int] = set()
        chosen: list[int] = []
        later: list[int] = []
        for index in left:
            move = moves[index]
            goes = (
                move.src not in sending
                and move.dst not in receiving
                and all(0 <= step_of[wait] < number for wait in move.waits)
            )
            if goes:
                sending.add(move.src)
                receiving.add(move.dst)
                step_of[index] = number
            (chosen if goes else later).append(index)
        for reduce in (True, False):
            some = [moves[index] for index in chosen if moves[index].reduce is reduce]
            if some:
                concurrent = not reduce and len(some) < len(chosen)
                columns = (
                    [getattr(move, name) for move in some] for name in ("src", "dst", "chunk")
                )
                src, dst, chunk = map(shared_index, columns)
                steps.append(Step(src, dst, chunk, reduce, concurrent=concurrent))
        left = later
        number += 1
    return tuple(steps)
