"""Two binary trees, each with half of the tensor; inner ranks of one are leaves of the other.

Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction
and scan", Parallel Computing 35(12), 2009; the trees are those of NCCL (src/graph/trees.cc).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernbench.collectives.plan import Plan, Request, even_bounds, shared_index
from kernbench.collectives.rails import parents
from kernbench.collectives.schedule import Step

PIECE_BYTES = 256 * 1024
MOST_PIECES = 8


def all_reduce(asked: Request) -> Plan:
    """Return both trees up to their roots and down again, pipelined over pieces."""
    n = asked.num_ranks
    pieces = min(max(asked.size_bytes // (2 * PIECE_BYTES), 1), MOST_PIECES)
    moves: list[Move] = []
    trees = [parents(n, second).tolist() for second in (False, True)]
    for piece in range(pieces):
        for number, tree in enumerate(trees):
            _add_tree(moves, tree, 2 * piece + number)
    return even_bounds(asked.num_elements, 2 * pieces), pack(moves)


def _add_tree(moves: list[Move], tree: list[int], chunk: int) -> None:
    """Append one chunk's transfers up a tree and down; children are reduced in their order."""
    children: list[list[int]] = [[] for _ in tree]
    for rank, parent in enumerate(tree):
        if parent >= 0:
            children[parent].append(rank)
    order = list(_from_the_root(children, tree.index(-1)))
    # By rank, the newest move that it has to wait for.
    newest: dict[int, int] = {}
    for rank in reversed(order):
        parent = tree[rank]
        if parent >= 0:
            waits = tuple(newest[number] for number in (rank, parent) if number in newest)
            newest[parent] = len(moves)
            moves.append(Move(rank, parent, chunk, True, waits))
    for rank in order:
        for child in children[rank]:
            waits = (newest[rank],) if rank in newest else ()
            newest[child] = len(moves)
            moves.append(Move(rank, child, chunk, False, waits))


def _from_the_root(children: list[list[int]], root: int) -> Iterator[int]:
    level = [root]
    while level:
        yield from level
        level = [child for rank in level for child in children[rank]]


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
