"""Products of a whole group whose surrounding commands cannot be merged.

The commands after a product may depend on the tile: it is split in two, reduced along rows, or
added to memory atomically. The programs then remain separate, but the loop that computes the
products is still an outer product of row tiles and column tiles: it is computed as in
``composite``, operands are loaded and upcast once, and every program gets its block of the result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernbench.commands import Loop, Param, ProgramGroup, Splat, Tile, walk
from kernbench.replay.plans.composite import Merge, flatten, outer_products
from kernbench.replay.plans.kinds import KindTable
from kernbench.replay.plans.merge import Classes, NotMergeableError
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
