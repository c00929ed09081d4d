"""The memory of a page is that of the run: its peaks, its phases, its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kernbench.analysis import memory_curve, memory_use
from kernbench.op_log import OpLog
from kernbench.page.contents import memory
from tests.page.runs import simulated
from tests.page.test_packing import unpacked


def rising(rank: int, torch: Any) -> None:
    kept = [torch.zeros(1024 * (1 + rank), dtype="f32") for _ in range(5)]
    torch.ahbm.synchronize()
    torch.zeros(64 * 1024, dtype="f32").numpy()
    kept[0].numpy()


def test_curves_reach_the_peaks_and_end_where_the_run_does(tmp_path: Path) -> None:
    run = simulated(tmp_path / "run", rising)
    result = memory(run.log)
    assert result is not None
    in_use = np.array(unpacked(result["in_use"])["bytes"])
    in_use = in_use.reshape(len(result["owners"]), result["bins"], len(result["phases"]))
    assert (in_use >= 0).all()
    by_rank = {item["rank"]: item for item in memory_use(run.log)["ranks"]}
    assert by_rank.keys() == {0, 1}
    for owner, curve in zip(result["owners"], in_use.sum(axis=2), strict=True):
        rank = owner["rank"]
        assert curve.max() == owner["peak_bytes"] == by_rank[rank]["peak_bytes"]
        _, sizes = memory_curve(run.log, rank, owner["device"])
        assert curve[-1] in sizes
    peak = result["peak"]
    assert sum(item["bytes"] for item in peak["phases"]) == peak["bytes"]


def test_a_run_without_a_record_of_its_memory_is_told_from_one_that_allocates_none() -> None:
    assert memory(OpLog()) == {"is_recorded": False}
