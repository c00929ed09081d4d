"""Which rows of a table the programs of a launch choose, where there are fewer than they choose.

A mixture of experts multiplies tiles of rows, each by the matrix of its expert, whose number it
loads. Data says which (docs/model/cache.md); but of eight experts no more than eight matrices can
be read, by however many tiles. So the numbers that a launch loads, in the order of where they lie,
are dealt out evenly to the rows of the table: rows are sorted by expert before tiles are made of
them.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from kernbench.commands import PROGRAM
from kernbench.dtypes import Array
from kernbench.kernel_time.costs.data_ranges import Numbers
from kernbench.kernel_time.costs.fingerprints import program_terms
from kernbench.kernel_time.program.origins import Loaded, Part, in_order
from kernbench.kernel_time.program.timed_plan import CommandSite


def chosen_rows(site: CommandSite, count: int, table_bytes: int) -> dict[int, Array]:
    """Return by the id of a loaded number the row of the table that each program has by it.

    Numbers count that a program loads one of, outside of loops, and shares with other programs:
    what is a row to them is a matrix to the kernel.
    """
    arrays = {}
    for part in () if site.gather is None else in_order(site.gather):
        if isinstance(part, Loaded) and _is_one_number(part):
            rows = table_bytes // stride if (stride := _stride(site.gather, part)) > 0 else 0
            where = reduce(np.add, program_terms(part.access.offset), np.zeros(count, np.int64))
            _, chosen = np.unique(where, return_inverse=True)
            number = int(chosen.max()) + 1
            if 0 < rows < number < count:
                arrays[id(part)] = chosen * rows // number
    return arrays


def _is_one_number(part: Loaded) -> bool:
    """Return whether each program loads one number, from an address that phase 1 knows."""
    varies = {dim for dims in part.access.offset.terms for dim in dims}
    return part.gather is None and all(n == 1 for n in part.shape) and varies == {PROGRAM}


def _stride(gather: Part | None, part: Loaded) -> int:
    """Return how far apart the addresses of two rows that follow each other lie, 0 if unevenly."""
    assert gather is not None
    first, second, third = (
        Numbers(0, {}, {id(part): number}).of(gather).array for number in range(3)
    )
    steps = np.unique((second - first, third - second))
    return int(steps[0]) if len(steps) == 1 else 0
