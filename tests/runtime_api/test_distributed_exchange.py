"""reduce, gather, scatter and all_to_all; named algorithms and protocols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernbench.errors import CollectiveMismatchError, KernbenchError, UnknownNameError, UsageError
from kernbench.runtime_api import RuntimeContext


def run(body: Callable[[Any, int], object], ranks: int = 4, machine: str = "ahbm") -> list[Any]:
    """Return what ``body(torch, rank)`` returns on every rank."""
    result: list[Any] = [None] * ranks

    with RuntimeContext(machine=machine, ranks=ranks) as torch:

        def worker(rank: int) -> None:
            torch.ahbm.set_device(rank)
            torch.distributed.init_process_group()
            result[rank] = body(torch, rank)

        torch.multiprocessing.spawn(worker, nprocs=ranks)
    return result


def row(torch: Any, rank: int, size: int = 6) -> Any:
    return torch.tensor(np.arange(size, dtype=np.float32) + 100 * rank)


@pytest.mark.parametrize("algorithm", ["auto", "ring", "tree"])
def test_reduce_gives_the_result_to_one_rank_and_leaves_the_others(algorithm: str) -> None:
    def body(torch: Any, rank: int) -> Any:
        x = row(torch, rank)
        torch.distributed.reduce(x, dst=2, algorithm=algorithm)
        return x.numpy()

    result = run(body)
    base = np.arange(6, dtype=np.float32)
    assert result[2].tolist() == (4 * base + 600).tolist()
    for rank in (0, 1, 3):
        assert result[rank].tolist() == (base + 100 * rank).tolist()


@pytest.mark.parametrize("algorithm", ["auto", "direct", "tree"])
def test_gather_and_scatter_are_each_others_inverse(algorithm: str) -> None:
    def body(torch: Any, rank: int) -> Any:
        mine = row(torch, rank)
        parts = [torch.zeros(6) for _ in range(4)] if rank == 1 else None
        torch.distributed.gather(mine, parts, dst=1, algorithm=algorithm)
        back = torch.zeros(6)
        torch.distributed.scatter(back, parts, src=1, algorithm=algorithm)
        return back.numpy(), None if parts is None else [part.numpy() for part in parts]

    result = run(body)
    expected = [(np.arange(6) + 100 * rank).tolist() for rank in range(4)]
    assert [part.tolist() for part in result[1][1]] == expected
    assert [back.tolist() for back, _ in result] == expected


@pytest.mark.parametrize("algorithm", ["auto", "pairwise", "one_shot", "bruck"])
def test_all_to_all_single_transposes(algorithm: str) -> None:
    def body(torch: Any, rank: int) -> Any:
        out = torch.zeros(8)
        torch.distributed.all_to_all_single(out, row(torch, rank, 8), algorithm=algorithm)
        return out.numpy()

    whole = np.stack([np.arange(8) + 100 * rank for rank in range(4)]).reshape(4, 4, 2)
    for rank, out in enumerate(run(body)):
        assert out.tolist() == whole[:, rank].ravel().tolist()


def test_all_to_all_takes_uneven_parts_by_sizes_and_by_lists() -> None:
    """Rank s gives rank d the number s d + 1 of rows."""

    def body(torch: Any, rank: int) -> Any:
        counts = [rank * other + 1 for other in range(3)]
        x = torch.tensor(np.full((sum(counts), 2), rank, np.float32))
        out = torch.zeros(sum(counts), 2)
        torch.distributed.all_to_all_single(out, x, counts, counts)
        givens = [torch.tensor(np.full(count, rank, np.float32)) for count in counts]
        takens = [torch.zeros(count) for count in counts]
        torch.distributed.all_to_all(takens, givens)
        return out.numpy()[:, 0].tolist(), [item.numpy().tolist() for item in takens]

    for rank, (rows, parts) in enumerate(run(body, ranks=3)):
        expected = [[float(src)] * (rank * src + 1) for src in range(3)]
        assert parts == expected
        assert rows == [value for part in expected for value in part]


def test_a_part_that_the_other_rank_does_not_expect_names_both_ranks() -> None:
    def body(torch: Any, rank: int) -> Any:
        sizes = [1, 3] if rank == 0 else [2, 2]
        torch.distributed.all_to_all_single(torch.zeros(4), torch.zeros(4), [2, 2], sizes)

    with pytest.raises(ExceptionGroup) as raises:
        run(body, ranks=2)
    assert raises.group_contains(
        CollectiveMismatchError, match="rank 0 sends 1 elements to rank 0, which takes 2"
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t, r: t.distributed.gather(t.zeros(2), None), UsageError, "must give gather_list"),
        (
            lambda t, r: t.distributed.all_to_all_single(t.zeros(3), t.zeros(3)),
            UsageError,
            "input of 3 elements cannot be divided evenly among the group's 2 ranks",
        ),
        (
            lambda t, r: t.distributed.all_to_all_single(t.zeros(4), t.zeros(4), [1, 1], [1, 1]),
            UsageError,
            r"input_split_sizes \[1, 1\] must be 2 numbers that add up to the 4 rows",
        ),
        (
            lambda t, r: t.distributed.all_reduce(t.zeros(2), algorithm="rings"),
            UnknownNameError,
            "unknown algorithm 'rings' of all_reduce",
        ),
        (
            lambda t, r: t.distributed.all_reduce(t.zeros(2), algorithm="hierarchical"),
            UsageError,
            "hierarchical takes groups of several whole nodes",
        ),
        (
            lambda t, r: t.distributed.all_reduce(t.zeros(2), algorithm="in_switch"),
            UsageError,
            "needs a switch that reduces; ahbm has none",
        ),
        (
            lambda t, r: t.distributed.all_reduce(t.zeros(2), protocol="ll"),
            UsageError,
            "machine ahbm has no protocols",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    call: Callable[[Any, int], object], error: type[KernbenchError], message: str
) -> None:
    with pytest.raises(ExceptionGroup) as raises:
        run(call, ranks=2)
    assert raises.group_contains(error, match=message)


@pytest.mark.adr("0035-D3")
@pytest.mark.parametrize(
    ("algorithm", "protocol", "expected"),
    [
        ("auto", "auto", "ring/ll"),
        ("auto", "ll128", "double_tree/ll128"),
        ("double_tree", "simple", "double_tree/simple"),
        ("in_switch", "auto", "in_switch/simple"),
        ("two_shot", "auto", "two_shot/simple"),
    ],
)
def test_named_algorithms_and_protocols_run_and_are_reported(
    algorithm: str, protocol: str, expected: str
) -> None:
    def body(torch: Any, rank: int) -> Any:
        x = row(torch, rank)
        torch.distributed.all_reduce(x, algorithm=algorithm, protocol=protocol)
        return x.numpy().tolist(), torch

    result = run(body, ranks=8, machine="h100-sxm")
    assert result[0][0] == (8 * np.arange(6) + 100 * 28).tolist()
    (line,) = result[0][1].report()["collectives"]
    assert line["algorithm"] == expected
