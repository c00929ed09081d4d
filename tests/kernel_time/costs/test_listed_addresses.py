"""Rows and elements that data names, counted by hand."""

from __future__ import annotations

import numpy as np

from kernbench.commands import (
    UNKNOWN_LINE,
    Access,
    IndexTile,
    Math,
    MathClass,
    Predicate,
    Separable,
    Tile,
)
from kernbench.dtypes import float16, int64
from kernbench.kernel_time.costs.bursts import TouchedBytes
from kernbench.kernel_time.costs.listed_addresses import count_lanes, listed
from tests.kernel_time.costs.test_bursts import BURST, load, site_of
from tests.kernel_time.kernel_traces import COLUMN


def test_a_gather_of_rows_moves_each_row_by_itself() -> None:
    rows = Tile(1, (8,), int64)
    column = Tile(2, (8, 1), int64)
    spread = Tile(3, (8, 100), int64)
    views = (
        Math(column, "tt.expand_dims", (rows,), MathClass.FREE, UNKNOWN_LINE, {"axis": 1}),
        Math(spread, "tt.broadcast", (column,), MathClass.FREE, UNKNOWN_LINE),
    )
    offset = Separable((8, 100), 0, {(COLUMN,): 2 * np.arange(100)})
    expected = ((), (TouchedBytes(1600, 8 * 256, 200),))
    command = load(Access(0, offset, float16, spread), Predicate((8, 100)))
    assert listed(site_of(command, *views), [0], BURST) == expected
    # The same addresses, with the columns among what is data.
    columns = IndexTile(offset, int64)
    added = Tile(4, (8, 100), int64)
    add = Math(added, "arith.addi", (spread, columns), MathClass.SIMPLE, UNKNOWN_LINE)
    command = load(Access(0, Separable((8, 100)), float16, added), Predicate((8, 100)))
    assert listed(site_of(command, *views, add), [0], BURST) == expected


def test_elements_that_are_each_named_by_data_move_a_burst_each() -> None:
    command = load(
        Access(0, Separable((8, 100)), float16, Tile(1, (8, 100), int64)), Predicate((8, 100))
    )
    assert listed(site_of(command), [0], BURST) == ((), (TouchedBytes(1600, 800 * 64, 2),))


def test_elements_and_bursts_of_any_addresses_are_those_of_their_set() -> None:
    generator = np.random.default_rng(3)
    for _ in range(50):
        addresses = 2 * generator.integers(0, 400, (6, 20))
        held = generator.random((6, 20)) < 0.7
        address = addresses[held] - addresses[held].min()
        bursts = {int(item + byte) // BURST for item in address for byte in (0, 1)}
        runs = 1 + int((np.diff(np.unique(address)) > 2).sum())
        elements, *rest = count_lanes(addresses, held, 2, BURST)
        assert (elements, rest) == (int(held.sum()), [len(bursts), runs])


def test_what_is_the_same_along_an_axis_is_one_element() -> None:
    addresses = np.broadcast_to(64 * np.arange(6)[:, None], (6, 20))
    assert count_lanes(addresses, np.ones((1, 1), dtype=bool), 2, BURST) == (6, 6, 6)
