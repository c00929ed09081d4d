"""Candidates of several ranks: records of collectives, deadlocks, mismatches, wrong ranks."""

from __future__ import annotations

import re

import pytest

from kernbench.errors import UsageError
from kernbench.judging import Outcome
from tests.judging.conftest import Judged
from tests.judging.tricks import HEAD

pytest.importorskip("torch")

_TASK = """
import torch
import torch.distributed as dist
ranks = RANKS
sizes = SIZES
def inputs(size, seed, rank):
    g = torch.Generator().manual_seed(seed * 100 + rank)
    return torch.randn(size, generator=g), torch.randn(size, generator=g)
def reference(x, y):
    z = 2 * x + y
    parts = [torch.empty_like(z) for _ in range(ranks)]
    dist.all_gather(parts, z)
    return torch.stack(parts).sum(0)
"""
_SMALL = _TASK.replace("RANKS", "2").replace("SIZES", "[8]")
_FOUR = _TASK.replace("RANKS", "4").replace("SIZES", "[100, 1000]")
_SUM = """
import torch.distributed as dist
def solve(x, y):
    z = axpied(x, y)
    dist.all_reduce(z)
    return z
"""
_RING = """
    r, n = dist.get_rank(), dist.get_world_size()
    total = z.clone()
    for _ in range(n - 1):
        other = torch.empty_like(z)
        pair = [dist.P2POp(dist.isend, z, (r + 1) % n), dist.P2POp(dist.irecv, other, (r - 1) % n)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
        z = other
        total = total + other
    return total
"""
_ASYNC = "    work = dist.all_reduce(z, async_op=True)\n    work.wait()\n    return z + 0\n"
_RECEIVES = """
    other, r = torch.empty_like(z), dist.get_rank()
    dist.recv(other, 1 - r)
    dist.send(z, 1 - r)
    return z + other
"""
_CALL = "    dist.all_reduce(z)\n    return z\n"


def _with(body: str) -> str:
    assert _CALL in _SUM
    return HEAD + _SUM.replace(_CALL, body)


@pytest.mark.adr("0272-D1", "0272-D2")
def test_ranks_that_add_up_are_right(judged: Judged) -> None:
    verdict = judged(HEAD + _SUM, _SMALL)
    assert verdict.is_right, verdict.why
    assert "huge" in verdict.sizes[0].values


@pytest.mark.adr("0272-D3")
def test_a_deadlock_is_told_by_rank_and_line(judged: Judged) -> None:
    text = _with("    if dist.get_rank():\n        dist.all_reduce(z)\n    return z\n")
    verdict = judged(text, _SMALL)
    assert verdict.outcome is Outcome.WRONG
    assert "nothing can wake rank 1" in verdict.why
    assert verdict.failure is not None
    line = text.splitlines().index("        dist.all_reduce(z)") + 1
    assert f"candidate.py:{line}" in verdict.failure.says
    assert "rank 0  finished" in verdict.failure.says


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("    return z\n", "rank [01]: the result is wrong at"),
        (_CALL.replace("z)", "z, dist.ReduceOp.MAX)"), "rank [01]: the result is wrong at"),
        (_CALL.replace("z)", "z[:3] if dist.get_rank() else z)"), "calls differ at all_reduce #1"),
        (
            "    dist.broadcast(z, 0) if dist.get_rank() else dist.all_reduce(z)\n    return z\n",
            "calls differ",
        ),
        (_ASYNC.replace("work.wait()", "pass"), "in use by all_reduce #1"),
        (_RECEIVES, "nothing can wake ranks 0 and 1"),
        (
            "    dist.all_reduce(z)\n    return z if dist.get_rank() else 2 * z\n",
            "rank 0: the result",
        ),
    ],
)
def test_a_mistake_of_two_ranks_is_found(body: str, says: str, judged: Judged) -> None:
    verdict = judged(_with(body), _SMALL)
    assert verdict.outcome is Outcome.WRONG
    assert re.search(says, verdict.why)


@pytest.mark.campaign
@pytest.mark.adr("0272-D1")
@pytest.mark.parametrize("body", [_CALL, _RING, _ASYNC])
def test_four_ranks_are_right_and_timed(body: str, judged: Judged) -> None:
    verdict = judged(_with(body), _FOUR, times=True)
    assert verdict.is_right, verdict.why
    (time,) = verdict.times
    assert time.time_ns > time.floor_ns


@pytest.mark.campaign
def test_an_answer_that_ranks_kept_is_a_cheat(judged: Judged) -> None:
    text = _with(_CALL.replace("return z", "kept[0] = z\n    return z")).replace(
        "def solve(x, y):\n", "kept = {}\ndef solve(x, y):\n    if kept: return kept[0]\n"
    )
    assert judged(text, _SMALL).outcome is Outcome.CHEAT


def test_a_task_of_too_many_ranks_is_refused(judged: Judged) -> None:
    with pytest.raises(UsageError, match="ranks must be an integer from 1 to 16, but got 99"):
        judged(HEAD + _SUM, _TASK.replace("RANKS", "99").replace("SIZES", "[8]"))
