"""Plain loads beside atomics, and atomics whose scope leaves out whom they meet, are races."""

from __future__ import annotations

from typing import Any

import pytest
import triton
import triton.language as tl

import kernbench
from kernbench.errors import DataRaceError


@triton.jit
def peeks(count, out, HOW: tl.constexpr):
    pid = tl.program_id(0)
    if HOW == "own":
        tl.atomic_add(count + pid, 1.0)
        tl.store(out + pid, tl.load(count + pid))
    elif HOW == "plain":
        tl.atomic_add(count, 1.0)
        tl.store(out + pid, tl.load(count))
    elif HOW == "plain first":
        tl.store(out + pid, tl.load(count))
        tl.atomic_add(count, 1.0)
    elif HOW == "volatile":
        tl.atomic_add(count, 1.0)
        tl.store(out + pid, tl.load(count, volatile=True))
    elif HOW == "atomic":
        tl.store(out + pid, tl.atomic_add(count, 1.0))
    elif HOW == "cta":
        tl.atomic_add(count, 1.0, scope="cta")
    elif HOW == "cta of its own":
        tl.atomic_add(count + pid, 1.0, scope="cta")


@triton.jit
def last_reads(parts, count, out, SEM: tl.constexpr, G: tl.constexpr):
    tl.atomic_add(parts, 1.0, sem="relaxed")
    arrived = tl.atomic_add(count, 1, sem=SEM)
    if arrived == G - 1:
        tl.store(out, tl.load(parts))


@triton.jit
def under_a_lock(lock, count, out):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    # As in Triton's tutorial of layer norm: atomics and plain loads of one place.
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    tl.store(out, tl.load(out) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def chain(x, flags, SCOPE: tl.constexpr):
    at = tl.program_id(0)
    before = 0.0
    if at > 0:
        while tl.atomic_add(flags + at - 1, 0, sem="acquire", scope=SCOPE) == 0:
            pass
        before = tl.load(x + at - 1)
    tl.store(x + at, before + 1)
    tl.debug_barrier()
    tl.atomic_xchg(flags + at, 1, sem="release", scope=SCOPE)


@triton.jit
def put(theirs, flag, SCOPE: tl.constexpr):
    tl.store(theirs, 5.0)
    tl.atomic_xchg(flag, 1, sem="release", scope=SCOPE)


@triton.jit
def take(mine, flag, out, SCOPE: tl.constexpr):
    while tl.atomic_add(flag, 0, sem="acquire", scope=SCOPE) == 0:
        pass
    tl.store(out, tl.load(mine))


def run(launch: Any) -> Any:
    with kernbench.RuntimeContext(machine="h100-sxm", check=True) as torch:
        return launch(torch)


def peek(how: str) -> Any:
    def launch(torch: Any) -> Any:
        out = torch.zeros(4)
        peeks[(4,)](torch.zeros(4), out, how)
        return out.tolist()

    return run(launch)


@pytest.mark.adr("0232-D6")
@pytest.mark.parametrize(
    ("how", "least", "most"),
    [("own", 1, 1), ("volatile", 1, 4), ("atomic", 0, 3), ("cta of its own", 0, 0)],
)
def test_what_looks_as_one_may_look_at_what_others_update(how: str, least: int, most: int) -> None:
    assert all(least <= item <= most for item in peek(how))


@pytest.mark.adr("0232-D6")
@pytest.mark.parametrize("how", ["plain", "plain first"])
def test_a_plain_load_may_not(how: str) -> None:
    words = "tt.load at .*reads .*update in tt.atomic_rmw|tt.atomic_rmw .*updates .*read in tt.load"
    with pytest.raises(DataRaceError, match=words):
        peek(how)


@pytest.mark.adr("0232-D6")
def test_one_that_follows_the_updates_may() -> None:
    def launch(torch: Any, sem: str) -> float:
        parts, count, out = torch.zeros(1), torch.zeros(1, dtype="i32"), torch.zeros(1)
        last_reads[(8,)](parts, count, out, sem, G=8)
        return float(out.item())

    assert run(lambda torch: launch(torch, "acq_rel")) == 8
    with pytest.raises(DataRaceError, match=r"reads .*updates in tt.atomic_rmw"):
        run(lambda torch: launch(torch, "relaxed"))


@pytest.mark.adr("0232-D6")
def test_so_may_one_under_a_lock() -> None:
    def launch(torch: Any) -> float:
        lock, count, out = (torch.zeros(1, dtype=name) for name in ("i32", "i32", "f32"))
        under_a_lock[(8,)](lock, count, out)
        return float(out.item())

    assert run(launch) == 8


@pytest.mark.adr("0232-D6")
def test_an_atomic_of_a_program_is_a_plain_access_to_others() -> None:
    def launch(torch: Any, scope: str) -> list[float]:
        x = torch.zeros(4)
        chain[(4,)](x, torch.zeros(4, dtype="i32"), scope)
        return [float(item) for item in x.tolist()]

    for scope in ("gpu", "sys"):
        assert run(lambda torch, scope=scope: launch(torch, scope)) == [1, 2, 3, 4]
    with pytest.raises(
        DataRaceError, match=r'tt.atomic_\w+ \(scope="cta"\).*its own program alone'
    ):
        run(lambda torch: launch(torch, "cta"))
    with pytest.raises(DataRaceError, match=r'\(scope="cta"\)'):
        peek("cta")


def signalled(scope: str) -> None:
    def worker(rank: int, torch: Any) -> None:
        torch.distributed.init_process_group()
        memory = torch.distributed.symmetric_memory
        x, flag = memory.empty(1, dtype=torch.float32), memory.empty(1, dtype=torch.int32)
        x.zero_()
        flag.zero_()
        shared, flags = memory.rendezvous(x), memory.rendezvous(flag)
        torch.distributed.barrier()
        if rank == 0:
            there = shared.get_buffer(1, (1,), torch.float32)
            put[(1,)](there, flags.get_buffer(1, (1,), torch.int32), scope)
        else:
            out = torch.zeros(1)
            take[(1,)](x, flag, out, scope)
            assert out.item() == 5

    with kernbench.RuntimeContext(machine="h100-sxm", ranks=2, check=True) as torch:
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2)


@pytest.mark.adr("0232-D6")
def test_an_atomic_of_a_device_is_none_to_another_device() -> None:
    signalled("sys")
    with pytest.raises(BaseExceptionGroup) as failure:
        signalled("gpu")
    (error, *_) = failure.value.exceptions
    assert isinstance(error, DataRaceError)
    assert 'see each other\'s atomics with scope="sys" alone' in str(error)
