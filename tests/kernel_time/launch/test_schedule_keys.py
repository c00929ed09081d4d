"""Keys of launches whose schedules are equal, against the schedules themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.commands import UNKNOWN_LINE, DmaRead, DmaWrite, KernelTrace, Predicate, Splat, Tile
from kernbench.dtypes import int32
from kernbench.hardware import load_machine
from kernbench.kernel_time import schedule_kernel, schedule_key
from tests.kernel_time.kernel_traces import access, trace_of
from tests.tiers import examples

MACHINE = load_machine("h100-sxm", 1)
BURST = MACHINE.sip.cube.hbm_burst_bytes
LANES = np.arange(8) * 4


def copied(load_at: list[int], store_at: list[int], value: int = 0) -> KernelTrace:
    """Return programs that each load a few numbers from a place, and store there and elsewhere."""
    tile, true = Tile(0, (8,), int32), Predicate((8,))
    loaded, stored = (
        access(param, (8,), int32, P=4 * np.array(places), R=LANES)
        for param, places in ((0, load_at), (1, store_at))
    )
    elsewhere = access(2, (8,), int32, P=4 * np.array(store_at), R=2 * LANES)
    body = (
        DmaRead(tile, loaded, true, None, UNKNOWN_LINE),
        DmaWrite(stored, tile, true, UNKNOWN_LINE),
        DmaWrite(elsewhere, Splat(value, (8,), int32), true, UNKNOWN_LINE),
    )
    return trace_of((list(range(len(load_at))), body))


def scheduled(trace: KernelTrace) -> tuple[Any, ...]:
    template = schedule_kernel(trace, MACHINE, 0)
    rows = {name: column.tolist() for name, column in template.make_rows().items()}
    return template.duration_ps, template.hbm_bytes, template.limits_ps, template.energy_pj, rows


@pytest.mark.adr("0277-D1")
@examples(40)
@given(
    st.lists(st.integers(0, 40), min_size=3, max_size=3),
    st.lists(st.integers(0, 40), min_size=3, max_size=3),
    st.integers(0, 40),
    st.integers(0, 3),
)
def test_launches_of_one_key_have_one_schedule(
    load_at: list[int], store_at: list[int], moved: int, value: int
) -> None:
    one = copied(load_at, store_at)
    other = copied(load_at, [place + moved for place in store_at], value)
    if schedule_key(one, BURST) == schedule_key(other, BURST):
        assert scheduled(one) == scheduled(other)
    else:
        # Bursts begin elsewhere in what is stored.
        assert moved * 4 % BURST


@pytest.mark.adr("0277-D1")
def test_what_decides_a_schedule_is_in_the_key() -> None:
    apart = copied([0, 8, 16], [0, 8, 16])
    keys = {
        schedule_key(trace, BURST)
        for trace in (
            apart,
            copied([0, 0, 0], [0, 8, 16]),
            copied([0, 8, 16], [0, 0, 0]),
            copied([0, 8, 24], [0, 8, 16]),
            copied([0, 8], [0, 8]),
        )
    }
    assert len(keys) == 5
    assert schedule_key(copied([0, 8, 16], [0, 8, 16], 7), BURST) in keys
