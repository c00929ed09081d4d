"""What was never written stays so through every collective; the oracle is NaN in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernbench

RANKS = 3
N = 6 * RANKS
Body = Callable[[int, Any, Any], Any]
"""From rank, torch and the rank's tensor of N elements to the tensor that holds its result."""


def gather(rank: int, torch: Any, x: Any) -> Any:
    out = torch.zeros(RANKS, N) if rank == 1 else None
    torch.distributed.gather(x, None if out is None else [out[i] for i in range(RANKS)], dst=1)
    return x if out is None else out


def scatter(rank: int, torch: Any, x: Any) -> Any:
    out = torch.zeros(N // RANKS)
    parts = [x.reshape(RANKS, -1)[i] for i in range(RANKS)] if rank == 2 else None
    torch.distributed.scatter(out, parts, src=2)
    return out


def all_to_all(rank: int, torch: Any, x: Any) -> Any:
    out = torch.zeros(N)
    torch.distributed.all_to_all_single(out, x)
    return out


def all_to_all_uneven(rank: int, torch: Any, x: Any) -> Any:
    """Rank r sends r + 1, r + 2 and the rest to ranks 0, 1 and 2."""
    sent = [[r + 1, r + 2, N - 2 * r - 3] for r in range(RANKS)]
    taken = [sent[r][rank] for r in range(RANKS)]
    out = torch.zeros(sum(taken))
    torch.distributed.all_to_all_single(out, x, taken, sent[rank])
    return out


def all_to_all_lists(rank: int, torch: Any, x: Any) -> Any:
    out, parts = torch.zeros(RANKS, N // RANKS), x.reshape(RANKS, -1)
    torch.distributed.all_to_all([out[i] for i in range(RANKS)], [parts[i] for i in range(RANKS)])
    return out


def all_gather(rank: int, torch: Any, x: Any) -> Any:
    out = torch.zeros(RANKS * N)
    torch.distributed.all_gather_into_tensor(out, x)
    return out


def all_gather_lists(rank: int, torch: Any, x: Any) -> Any:
    out = torch.zeros(RANKS, N)
    torch.distributed.all_gather([out[i] for i in range(RANKS)], x)
    return out


def reduce_scatter(rank: int, torch: Any, x: Any) -> Any:
    out = torch.zeros(N // RANKS)
    torch.distributed.reduce_scatter_tensor(out, x)
    return out


def reduce_scatter_lists(rank: int, torch: Any, x: Any) -> Any:
    out, parts = torch.zeros(N // RANKS), x.reshape(RANKS, -1)
    torch.distributed.reduce_scatter(out, [parts[i] for i in range(RANKS)])
    return out


def all_reduce(rank: int, torch: Any, x: Any) -> Any:
    torch.distributed.all_reduce(x)
    return x


def reduce(rank: int, torch: Any, x: Any) -> Any:
    torch.distributed.reduce(x, dst=1)
    return x


def broadcast(rank: int, torch: Any, x: Any) -> Any:
    torch.distributed.broadcast(x, src=2)
    return x


def send_recv(rank: int, torch: Any, x: Any) -> Any:
    if rank == 0:
        torch.distributed.send(x, 1)
    elif rank == 1:
        torch.distributed.recv(x, 0)
    return x


def results(body: Body, missing: list[Any], check: bool) -> dict[int, Any]:
    """Return, per rank, where its result has elements that were made of missing ones."""
    result: dict[int, Any] = {}

    def worker(rank: int, torch: Any) -> None:
        torch.distributed.init_process_group()
        if check:
            x = torch.empty(N)
            for i in np.flatnonzero(~missing[rank]).tolist():
                x[i : i + 1].fill_(1)
        else:
            x = torch.from_numpy(np.where(missing[rank], np.nan, 1).astype(np.float32))
        out = body(rank, torch, x)
        values = out.numpy().reshape(-1)
        if check:
            written = out.buffer.written
            result[rank] = np.zeros(len(values), np.bool_) if written is None else written[::4] == 0
        else:
            result[rank] = np.isnan(values)

    with kernbench.RuntimeContext(machine="ahbm", ranks=RANKS, check=check) as torch:
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=RANKS)
    return result


@pytest.mark.adr("0020-D2")
@pytest.mark.parametrize(
    "body",
    [
        all_gather,
        all_gather_lists,
        all_reduce,
        all_to_all,
        all_to_all_lists,
        all_to_all_uneven,
        broadcast,
        gather,
        reduce,
        reduce_scatter,
        reduce_scatter_lists,
        scatter,
        send_recv,
    ],
)
def test_an_element_is_written_if_all_that_it_is_made_of_were(body: Body) -> None:
    missing = list(np.random.default_rng(5).random((RANKS, N)) < 0.3)
    expected = results(body, missing, check=False)
    result = results(body, missing, check=True)
    assert any(item.any() for item in expected.values())
    for rank in range(RANKS):
        np.testing.assert_array_equal(result[rank], expected[rank], err_msg=f"rank {rank}")
