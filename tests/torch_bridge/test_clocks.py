"""Programs that time themselves find modeled time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.torch_bridge.clocks import READING_PS  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402


def run(folder: Path, source: str, **options: object) -> object:
    path = folder / "program.py"
    path.write_text(source)
    return simulated(path, **options)  # type: ignore[arg-type]


STEP = """
import time, timeit, torch
x = torch.ones(512, 512, device="cuda")
clocks = (time.time, time.perf_counter, timeit.default_timer,
          lambda: time.time_ns() / 1e9, lambda: time.perf_counter_ns() / 1e9)
for clock in clocks:
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    started = clock()
    begin.record()
    for _ in range(20):
        x @ x
    end.record()
    end.synchronize()
    took_ms = (clock() - started) * 1e3
    # The device begins one launch after the host does.
    assert 0 <= took_ms - begin.elapsed_time(end) < 0.01, (took_ms, begin.elapsed_time(end))
"""


@pytest.mark.adr("0092-D1")
def test_a_step_takes_what_the_device_says(tmp_path: Path) -> None:
    run(tmp_path, STEP)


@pytest.mark.adr("0092-D1")
def test_benchmarks_of_pytorch_say_modeled_time(tmp_path: Path) -> None:
    source = """
import torch
from torch.utils.benchmark import Timer
x = torch.ones(512, 512, device="cuda")
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
begin.record()
for _ in range(50):
    x @ x
end.record()
torch.cuda.synchronize()
found = Timer("x @ x", globals={"x": x}).timeit(50).mean
assert abs(found * 1e3 * 50 / begin.elapsed_time(end) - 1) < 0.05
"""
    run(tmp_path, source)


@pytest.mark.adr("0092-D1")
def test_a_run_begins_at_the_real_time_and_each_rank_has_its_own(tmp_path: Path) -> None:
    source = """
import os, time
import torch.distributed as dist
rank = int(os.environ["RANK"])
begun = time.time()
time.sleep(rank * 1000)
took = time.time() - begun
assert rank * 1000 <= took < rank * 1000 + 1e-3
dist.init_process_group("gloo")
dist.barrier()
assert 1000 <= time.time() - begun < 1001
print(f"begun {begun:.6f}")
"""
    before = time.time()
    context = run(tmp_path, source, nprocs=2)
    assert time.time() - before < 500
    assert context.simulation.now_ps >= 1000 * 10**12


@pytest.mark.adr("0092-D2")
def test_looking_takes_time(tmp_path: Path) -> None:
    source = """
import time
first, second = time.perf_counter_ns(), time.perf_counter_ns()
assert second - first == {reading_ns}
end = time.time() + 0.001
looked = 1
while time.time() < end:
    looked += 1
assert abs(looked * {reading_ns} - 1e6) < 1e3
"""
    run(tmp_path, source.format(reading_ns=READING_PS // 1000))


@pytest.mark.adr("0092-D3")
def test_waits_that_nobody_ends_take_their_timeout(tmp_path: Path) -> None:
    source = """
import queue, threading, time
from concurrent.futures import ThreadPoolExecutor, TimeoutError, as_completed

def timed(wait):
    begun = time.perf_counter()
    wait()
    return round(time.perf_counter() - begun, 3)

def get():
    try:
        queue.Queue().get(timeout=2)
    except queue.Empty:
        return
    raise AssertionError

def condition():
    never = threading.Condition()
    with never:
        assert not never.wait_for(lambda: False, timeout=3)

assert timed(get) == 2
assert timed(condition) == 3
assert timed(lambda: threading.Event().wait(4)) == 4
with ThreadPoolExecutor(2) as pool:
    slow = [pool.submit(time.sleep, 9) for _ in range(2)]
    def some():
        try:
            list(as_completed(slow, timeout=5))
        except TimeoutError:
            return
        raise AssertionError
    assert timed(some) == 5
"""
    context = run(tmp_path, source)
    assert 18 <= context.simulation.now_ps / 10**12 < 18.001


@pytest.mark.adr("0092-D4")
def test_threads_of_a_process_sleep_side_by_side(tmp_path: Path) -> None:
    source = """
import threading, time
begun = time.perf_counter()
threads = [threading.Thread(target=time.sleep, args=(seconds,)) for seconds in (3, 5, 4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert round(time.perf_counter() - begun, 3) == 5
"""
    run(tmp_path, source)


@pytest.mark.adr("0092-D1")
def test_what_a_program_has_taken_is_the_real_clock_again_after_it(tmp_path: Path) -> None:
    source = "import builtins\nfrom time import time\nbuiltins.kept = time\n"
    before = time.time
    import builtins

    try:
        run(tmp_path, source)
        kept = builtins.kept  # type: ignore[attr-defined]
        assert time.time is before is not kept
        assert abs(kept() - time.time()) < 60
    finally:
        vars(builtins).pop("kept", None)


@pytest.mark.adr("0092-D5")
def test_measurements_end_when_blocks_take_equal_times(tmp_path: Path) -> None:
    source = """
import torch
from torch.utils.benchmark import Timer
x, y = torch.ones(64, 64, device="cuda"), torch.ones(64)
calls = 0
def multiply():
    global calls
    calls += 1
    return x @ x
exact = Timer("multiply()", globals=globals()).timeit(100).mean
for name in ("blocked_autorange", "adaptive_autorange"):
    calls = 0
    found = getattr(Timer("multiply()", globals=globals()), name)()
    # The clock itself is looked at once in a block.
    assert abs(found.median / exact - 1) < 0.01, (name, found, exact)
    assert calls < 10_000
    # What takes the host's time only takes none.
    assert getattr(Timer("y.add(1)", globals=globals()), name)().median < 1e-6
"""
    run(tmp_path, source)
