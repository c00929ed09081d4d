from __future__ import annotations

import pytest

from kernbench.collectives import build, known_algorithms, known_ops
from kernbench.errors import UnknownNameError, UsageError


def test_an_unknown_op_names_the_nearest_known() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown collective 'allreduce'.*all_reduce"):
        build("allreduce", "ring", 4, 16, 4)


def test_an_unknown_algorithm_names_the_op_and_the_known_ones() -> None:
    with pytest.raises(
        UnknownNameError, match="'butterfly' of all_reduce: known: bidirectional_ring, direct"
    ):
        build("all_reduce", "butterfly", 4, 16, 4)
    with pytest.raises(UnknownNameError, match="broadcast"):
        known_algorithms("multicast")


@pytest.mark.parametrize("op", known_ops())
def test_auto_takes_the_first_algorithm(op: str) -> None:
    size = 0 if op == "barrier" else 4
    assert build(op, "auto", 2, size, 4).algorithm == known_algorithms(op)[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_reduce", "ring", 0, 4, 4), "num_ranks must be at least 1, but got 0"),
        (("all_reduce", "ring", 4, -1, 4), "num_elements must be at least 0, but got -1"),
        (("all_reduce", "ring", 4, 4, 0), "itemsize must be at least 1, but got 0"),
        (("broadcast", "ring", 4, 4, 4, 4), r"root must be in 0\.\.3, but got 4"),
        (("broadcast", "tree", 4, 4, 4, -1), r"root must be in 0\.\.3, but got -1"),
        (("send_recv", "direct", 3, 4, 4), "num_ranks must be 2, but got 3"),
        (("send_recv", "direct", 1, 4, 4), "num_ranks must be at least 2, but got 1"),
        (("barrier", "dissemination", 3, 4, 4), "num_elements must be 0, but got 4"),
    ],
)
def test_a_number_out_of_range_is_refused_with_its_range(
    arguments: tuple[str, str, int, int, int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        build(*arguments)


def test_equal_requests_share_one_plan_that_cannot_be_written_to() -> None:
    schedule = build("all_reduce", "ring", 4, 10, 4)
    assert build("all_reduce", "ring", 4, 10, 4) is schedule
    with pytest.raises(ValueError, match="read-only"):
        schedule.steps[0].chunk[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        schedule.chunk_bounds[0] = 1
