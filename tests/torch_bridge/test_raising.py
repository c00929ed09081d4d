"""Errors of every kind come out of whatever calls code of the user, and end the rank."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import real, simulated  # noqa: E402


def test_what_comes_out_of_pytorch_is_what_comes_out_of_real_processes(tmp_path: Path) -> None:
    found = []
    for run in (simulated, real):
        folder = tmp_path / run.__name__
        folder.mkdir()
        run("raising.py", folder, nprocs=2)
        found.append([json.loads((folder / f"rank{each}.json").read_text()) for each in (0, 1)])
    for mine, right in zip(*found, strict=True):
        assert {k: v for k, v in mine.items() if right[k] != v} == {}
    assert len(found[0][0]) >= 100
    # An iteration that StopIteration ends is Python's own; nothing else is swallowed.
    nothing = ("returns None", "returns []", "returns 0")
    silent = {place for place, what in found[0][0].items() if what in nothing}
    assert silent == {"StopIteration in items", "SystemExit in thread"}


KERNEL = """
import os, greenlet, simpy, torch, triton, triton.language as tl
import torch.distributed as dist

@triton.jit
def one(x):
    tl.store(x, 1.0)

def boom(*args, **kwargs):
    raise kind("x")

class Pointer:
    dtype = torch.float32
    data_ptr = boom

class Own(BaseException):
    pass

dist.init_process_group("nccl")
x = torch.zeros(1, device="cuda")
hooks = triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook
tuned = triton.autotune([triton.Config({{}}, pre_hook=boom)], key=[])(one)

def hooked(hook):
    hook.add(boom)
    try:
        one[(1,)](x)
    finally:
        hook.remove(boom)

places = [
    lambda: one[lambda meta: boom()](x),
    lambda: one[(1,)](Pointer()),
    lambda: tuned[(1,)](x),
    lambda: hooked(hooks[0]),
    lambda: hooked(hooks[1]),
]
kinds = [
    StopIteration, StopAsyncIteration, GeneratorExit, SystemExit, KeyboardInterrupt,
    greenlet.GreenletExit, simpy.Interrupt, simpy.core.StopSimulation, simpy.core.EmptySchedule,
    Own,
]
for place in places:
    for kind in kinds:
        try:
            place()
        except kind:
            continue
        raise AssertionError(f"{{kind}} does not come out")
kind = kinds[{kind}]
if os.environ["RANK"] == "1":
    places[{place}]()
dist.barrier()
"""


@pytest.mark.parametrize(("kind", "place"), [(0, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 0)])
def test_every_kind_comes_out_of_a_launch_and_ends_the_rank(
    tmp_path: Path, kind: int, place: int
) -> None:
    path = tmp_path / "program.py"
    path.write_text(KERNEL.format(kind=kind, place=place))
    with pytest.raises(BaseException) as raised:
        simulated(path, nprocs=2)
    names = {0: "StopIteration", 2: "GeneratorExit", 4: "KeyboardInterrupt", 5: "GreenletExit"}
    failed = getattr(raised.value, "errors", {1: raised.value})
    assert list(failed) == [1]
    if kind == 3:
        assert str(failed[1]) == "rank 1 called sys.exit('x')"
    else:
        assert type(failed[1]).__name__ == names.get(kind, "Interrupt")


THREAD = """
import signal, threading, torch
from concurrent.futures import ThreadPoolExecutor

def work():
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    while True:
        pass

if {is_thread}:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
else:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work)  # who asks for no result hears of no error
print("went on")
"""


@pytest.mark.parametrize("is_thread", [True, False])
@pytest.mark.parametrize("nprocs", [1, 2])
def test_ctrl_c_in_a_thread_of_a_rank_ends_the_run(
    tmp_path: Path, is_thread: bool, nprocs: int, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.py"
    path.write_text(THREAD.format(is_thread=is_thread))
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            simulated(path, nprocs=nprocs)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    said = capfd.readouterr()
    assert "went on" not in said.out
    assert "Exception in thread" not in said.err
