"""The difference of two runs: it adds up, and says what changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kernbench import RuntimeContext, ops
from kernbench.analysis import Difference, difference, slower_by
from kernbench.saved import SavedRun, load_run, save_run
from tests.tiers import examples


def kept(folder: Path, name: str, *work: tuple[str, int], machine: str = "ahbm:1") -> SavedRun:
    """Save and read a run of operations, each of a name and a number of rows."""
    with RuntimeContext(machine=machine, data=False) as torch:
        tensors: dict[int, Any] = {}
        for what, rows in work:
            x = tensors.setdefault(rows, torch.zeros(rows, rows))
            x @ x if what == "matmul" else ops.gelu(x)
    path = folder / name
    with path.open("wb") as out:
        save_run(out, torch.op_log, torch.machine, torch.report())
    return load_run(path)


def causes(difference: Difference, name: str) -> str:
    """Return what is said about a kernel on the device."""
    listed = [
        item["causes"]
        for item in difference["contributions"]
        if item["name"] == name and not item["resource"].startswith("host")
    ]
    return "; ".join(listed[0])


@examples(10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    *[
        st.lists(
            st.tuples(st.sampled_from(["matmul", "gelu"]), st.sampled_from([16, 512])), max_size=5
        )
        for _ in range(2)
    ]
)
def test_contributions_add_up_to_the_difference_of_the_runs(
    tmp_path: Path, first: list[tuple[str, int]], second: list[tuple[str, int]]
) -> None:
    before, after = kept(tmp_path, "a", *first), kept(tmp_path, "b", *second)
    result = difference(before, after)
    assert sum(item["difference_ns"] for item in result["contributions"]) == pytest.approx(
        result["difference_ns"], abs=1e-3
    )
    assert result["after_ns"] - result["before_ns"] == result["difference_ns"]
    back = difference(after, before)
    assert back["difference_ns"] == -result["difference_ns"]


def test_a_run_does_not_differ_from_itself(tmp_path: Path) -> None:
    run = kept(tmp_path, "a", ("matmul", 64))
    result = difference(run, run)
    assert slower_by(result) == 0
    assert not any(item["difference_ns"] or item["causes"] for item in result["contributions"])


def test_what_caused_a_difference_is_named(tmp_path: Path) -> None:
    base = kept(tmp_path, "a", ("matmul", 512))
    more = difference(base, kept(tmp_path, "b", *[("matmul", 512)] * 3))
    assert causes(more, "matmul") == "launches of a rank 1 -> 3"
    larger = difference(base, kept(tmp_path, "c", ("matmul", 1024)))
    assert "268 MFLOP -> 2.15 GFLOP a launch" in causes(larger, "matmul")
    other = difference(base, kept(tmp_path, "d", ("matmul", 512), ("gelu", 512)))
    assert causes(other, "gelu") == "only in the second run"
    machine = difference(base, kept(tmp_path, "e", ("matmul", 512), machine="h100-sxm:1"))
    assert " each" in causes(machine, "matmul")
