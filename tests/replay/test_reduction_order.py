from __future__ import annotations

import numpy as np
import pytest

from kernbench.collectives import build
from kernbench.replay import reduction_order, run_collective
from kernbench.replay.reduction_order import reduce_in_order, sweeps_of
from kernbench.replay.run import run_steps

CHAINS = [
    *[("all_reduce", name) for name in ("ring", "direct", "one_shot", "two_shot", "in_switch")],
    *[("reduce_scatter", name) for name in ("ring", "direct", "one_shot")],
    ("reduce", "ring"),
]


@pytest.mark.parametrize("n", [2, 3, 8, 64])
@pytest.mark.parametrize(("op", "algorithm"), CHAINS)
def test_ranks_that_are_added_one_by_one_take_three_operations_each(
    op: str, algorithm: str, n: int
) -> None:
    """Where the steps of a schedule would take one for each rank and chunk."""
    size = 5 * n
    sweeps = sweeps_of(build(op, algorithm, n, size, 8))
    assert sweeps is not None
    assert len(sweeps) <= 3 * n
    works = [np.full(size, 1 << rank, dtype=object) for rank in range(n)]
    # Every element is made of every rank, once.
    assert all((part == (1 << n) - 1).all() for _, part in reduce_in_order(sweeps, np.add, works))


def test_a_ring_in_two_directions_takes_them_for_each() -> None:
    sweeps = sweeps_of(build("all_reduce", "bidirectional_ring", 64, 640, 4))
    assert sweeps is not None
    assert len(sweeps) <= 2 * 3 * 64


@pytest.mark.parametrize("algorithm", ["tree", "double_tree", "halving_doubling"])
def test_sums_of_sums_are_left_to_the_steps(algorithm: str) -> None:
    assert sweeps_of(build("all_reduce", algorithm, 8, 80, 4)) is None


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "reduce"])
@pytest.mark.parametrize("reduce_op", ["sum", "avg"])
def test_strips_leave_what_the_steps_leave(
    op: str, reduce_op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reduction_order, "_STRIP_BYTES", 28)
    schedule = build(op, "ring", 5, 61, 4, **({"root": 3} if op == "reduce" else {}))
    rng = np.random.default_rng(0)
    works = [rng.standard_normal(61, dtype=np.float32) for _ in range(5)]
    by_steps = [work.copy() for work in works]
    run_collective(schedule, reduce_op, works)
    run_steps(schedule, reduce_op, by_steps)
    bounds = schedule.chunk_bounds.tolist()
    for rank, (work, expected) in enumerate(zip(works, by_steps, strict=True)):
        if op == "reduce_scatter":
            own = slice(bounds[rank], bounds[rank + 1])
            work, expected = work[own], expected[own]
        if op != "reduce" or rank == 3:
            assert work.tobytes() == expected.tobytes()
