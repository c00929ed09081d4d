"""Who waits too long gets an error, in simulated time; who looks again and again comes to it."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import CollectiveTimeoutError, DeadlockError  # noqa: E402
from kernbench.runtime_api import RuntimeContext, SpawnException  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

START = """import threading, time
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group({backend!r}, timeout=timedelta(seconds=30))
rank, x = dist.get_rank(), torch.ones(4)
store = dist.distributed_c10d._get_default_store()
if {backend!r} == "nccl":
    torch.cuda.set_device(rank)
    x = x.cuda()
def now(): return time.monotonic() - 86400
"""
LINE = START.count("\n") + 1
"""Of the first line of a case."""


class Case:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "case.py"

    def run(self, source: str, backend: str = "nccl", nprocs: int = 3) -> RuntimeContext:
        self._path.write_text(START.format(backend=backend) + source)
        return simulated(self._path, nprocs=nprocs)

    def error(self, source: str, backend: str = "nccl") -> Exception:
        with pytest.raises(Exception) as caught:
            self.run(source, backend)
        error = caught.value
        return error.exceptions[0] if isinstance(error, SpawnException) else error


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


NEVER = {
    "a poll": (
        "work = dist.all_reduce(x, async_op=True) if rank else None\n"
        "while rank and not work.is_completed(): pass",
        ["all_reduce #1 on group world is given up", "rank 0  finished at"],
    ),
    "a poll that sleeps": (
        "work = dist.all_reduce(x, async_op=True) if rank else None\n"
        "while rank and not work.is_completed(): time.sleep(0.01)",
        ["all_reduce #1 on group world is given up", "rank 0  finished at"],
    ),
    "a sleep": (
        "while rank == 0: time.sleep(1)\ndist.barrier()",
        ["barrier #1 on group world is given up", f"rank 0  time.sleep, since .*case.py:{LINE}"],
    ),
    "a look at a key": (
        "while rank == 0 and not store.check(['never']): pass\ndist.barrier()",
        ["barrier #1 on group world is given up", f"rank 0  store.check, .*case.py:{LINE}"],
    ),
    "a look at a clock": (
        "while rank == 0 and time.monotonic() < 10**6: pass\ndist.barrier()",
        ["barrier #1 on group world is given up", f"rank 0  a look at the .*case.py:{LINE}"],
    ),
    "a receive": (
        "while rank == 0: time.sleep(1)\nif rank == 1: dist.recv(x, 0)",
        ["send #1 from rank 0 to rank 1 is given up", f"rank 1  recv #1 .*case.py:{LINE + 1}"],
    ),
    "a late rank": (
        "if rank == 0: torch.cuda.synchronize(); time.sleep(31)\ndist.barrier()",
        ["rank 0  time.sleep", "given up after a timeout of 30 s, without rank 0"],
    ),
}


@pytest.mark.adr("0120-D1")
@pytest.mark.adr("0120-D3")
@pytest.mark.adr("0120-D4")
@pytest.mark.adr("0120-D5")
@pytest.mark.parametrize("which", NEVER)
def test_a_group_waits_as_long_as_its_timeout_for_who_never_comes(which: str, case: Case) -> None:
    source, patterns = NEVER[which]
    error = case.error(source)
    if not isinstance(error, CollectiveTimeoutError):
        raise error
    for pattern in (*patterns, "timeout of 30 s", "rank 1  ", "rank 2  ", f"case.py:{LINE + 1}"):
        with pytest.raises(CollectiveTimeoutError, match=pattern):
            raise error


@pytest.mark.adr("0120-D1")
def test_who_comes_in_time_is_no_error(case: Case) -> None:
    source = """
if rank == 0: time.sleep(29)
work = dist.all_reduce(x, async_op=True)
while not work.is_completed(): time.sleep(0.5)
assert x.tolist() == [3] * 4 and 29 <= now() < 30
dist.barrier()
"""
    assert case.run(source).simulation.now_ps < 30 * 10**12


@pytest.mark.adr("0120-D1")
def test_a_group_of_its_own_has_its_own_timeout(case: Case) -> None:
    source = """
group = dist.new_group(timeout=timedelta(seconds=100))
if rank == 0: time.sleep(99)
dist.barrier(group)
if rank == 0: time.sleep(101)
dist.all_reduce(x, group=group)
"""
    assert "timeout of 100 s" in str(case.error(source))


@pytest.mark.adr("0120-D2")
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_the_timeout_of_one_wait_is_raised_to_the_program(case: Case, backend: str) -> None:
    source = """
def timed(call, *args):
    begun = now()
    try:
        call(*args)
    except RuntimeError as error:
        return round(now() - begun, 3), type(error), str(error)
    raise AssertionError("no timeout")

took, kind, said = timed(store.wait, ["never"], timedelta(seconds=3))
assert took == 3 and issubclass(kind, dist.DistStoreError) and "nobody has set" in said, said
if rank:
    took, kind, said = timed(dist.all_reduce(x, async_op=True).wait, timedelta(seconds=5))
    assert took == 5 and "without rank 0" in said and "rank 0  time.sleep" in said, said
else:
    time.sleep(20)
    # It was given up for all.
    assert timed(dist.all_reduce, x)[0] == 0
if dist.get_backend() == "gloo":
    took, kind, said = timed(lambda: dist.monitored_barrier(timeout=timedelta(seconds=7))
                             if rank else time.sleep(50) or dist.barrier())
    assert took in (7, 50) and "barrier #2 on group world is given up" in said, said
"""
    case.run(source, backend)


@pytest.mark.adr("0120-D2")
def test_a_wait_that_ends_in_time_goes_on(case: Case) -> None:
    source = """
if rank == 0:
    time.sleep(2)
    store.set("late", "1")
store.wait(["late"], timedelta(seconds=3))
time.sleep(2 if rank == 0 else 0)
assert dist.all_reduce(x, async_op=True).wait(timedelta(seconds=3))
dist.monitored_barrier(timeout=timedelta(seconds=3))
assert 4 <= now() < 4.001 and x.tolist() == [3] * 4
"""
    case.run(source, "gloo")


@pytest.mark.adr("0120-D3")
def test_a_look_lets_others_do_what_it_looks_for(case: Case) -> None:
    source = """
event = threading.Event()
def work():
    time.sleep(1)
    event.set()
    time.sleep(1)
thread = threading.Thread(target=work)
thread.start()
while not event.is_set(): pass
assert 1 <= now() < 1.01
while thread.is_alive(): pass
assert 2 <= now() < 2.02
if rank == 0:
    time.sleep(1)
    store.set("key", "1")
while not store.check(["key"]): pass
assert 3 <= now() < 3.03
"""
    case.run(source, "gloo", nprocs=2)


@pytest.mark.adr("0120-D4")
def test_looks_come_to_the_programs_own_deadline(case: Case) -> None:
    source = """
if rank == 0:
    while not store.check(["never"]):
        if now() > 20:
            break
dist.barrier()
assert 20 <= now() < 20.1
"""
    case.run(source)


@pytest.mark.adr("0120-D4")
@pytest.mark.parametrize("look", ["event.is_set()", "store.check(['never'])", "time.sleep(0.1)"])
def test_looks_without_any_deadline_end_as_a_deadlock(case: Case, look: str) -> None:
    error = case.error(f"event = threading.Event()\nwhile rank == 0 and not {look}: pass")
    assert isinstance(error, DeadlockError)
    assert "nothing happens any more" in str(error)
    assert f"case.py:{LINE + 1}" in str(error)
    assert "rank 1  finished" in str(error)


def test_what_cannot_happen_is_a_deadlock_at_once(case: Case) -> None:
    error = case.error("if rank: dist.barrier()")
    assert isinstance(error, DeadlockError)
    assert "nothing can wake ranks 1 and 2 at 4.000 us" in str(error)
