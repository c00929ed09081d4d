"""Programs in a row that take equally long are placed at once as they would be one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernbench.kernel_time.launch.waves import _in_runs, _singly

_RUNS = st.lists(st.tuples(st.integers(-1, 3), st.integers(1, 300)), min_size=1, max_size=12)
_INTERVALS = st.lists(st.integers(0, 5000), min_size=4, max_size=4)


@given(_RUNS, _INTERVALS, st.integers(1, 40))
def test_runs_are_placed_as_their_programs_singly(
    runs: list[tuple[int, int]], intervals: list[int], num_pes: int
) -> None:
    values, counts = (np.array(column) for column in zip(*runs, strict=True))
    placed = (values, counts, np.array(intervals), num_pes)
    for by_run, singly in zip(_in_runs(*placed), _singly(*placed), strict=True):
        assert by_run.tolist() == singly.tolist()
