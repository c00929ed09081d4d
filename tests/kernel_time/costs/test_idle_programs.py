"""Programs that find no work."""

from __future__ import annotations

import numpy as np

from kernbench.commands import UNKNOWN_LINE, DmaRead, Predicate, Tile
from kernbench.dtypes import int32
from kernbench.kernel_time.costs.idle_programs import working_ids
from tests.kernel_time.kernel_traces import access, gemm_trace, only_gemm, trace_of

LOOK = DmaRead(Tile(9, (), int32), access(0, (), int32), Predicate(()), None, UNKNOWN_LINE)


def test_programs_that_only_look_for_work_are_told_from_those_that_do() -> None:
    working = (LOOK, *only_gemm(16, 16, 16))
    ids = working_ids(trace_of(([0, 2, 5], working), ([1, 3], (LOOK,)), ([4], ())))
    assert ids is not None
    assert ids.tolist() == np.array([0, 2, 5]).tolist()
    assert working_ids(gemm_trace(64, 64, 64)) is None
    # Where none does anything else, all are alike.
    assert working_ids(trace_of(([0, 1], (LOOK,)))) is None
