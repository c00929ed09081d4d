"""Programs that time themselves find modeled time."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.torch_bridge.processes.host import READING_PS  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402


def run(folder: Path, source: str, **options: object) -> object:
    path = folder / "program.py"
    path.write_text(source)
    return simulated(path, **options)  # type: ignore[arg-type]


STEP = """
import os, time, timeit, torch
from datetime import UTC, date, datetime
x = torch.ones(512, 512, device="cuda")
clocks = [time.time, time.perf_counter, time.monotonic, time.process_time, time.thread_time]
clocks += [lambda name=each.__name__: getattr(time, f"{name}_ns")() / 1e9 for each in clocks]
clocks += [lambda n=each: time.clock_gettime(n) for each in (
    time.CLOCK_REALTIME, time.CLOCK_MONOTONIC, time.CLOCK_PROCESS_CPUTIME_ID)]
clocks += [lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC) / 1e9, timeit.default_timer]
clocks += [lambda: os.times().elapsed, lambda: os.times().user]
clocks += [lambda: datetime.now().timestamp(), lambda: datetime.now(UTC).timestamp(),
           lambda: datetime.utcnow().timestamp(), lambda: datetime.today().timestamp()]
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


@pytest.mark.adr("0119-D1")
def test_a_step_takes_what_the_device_says(tmp_path: Path) -> None:
    run(tmp_path, STEP)


@pytest.mark.adr("0119-D1")
def test_what_says_the_present_date_is_modeled(tmp_path: Path) -> None:
    source = """
import time
from datetime import date, datetime
time.sleep(-time.time() % 86400 + 3 * 86400)  # To the beginning of a day in UTC.
now = int(time.time())
assert now % 86400 == 0
for found in (time.mktime(time.localtime()), time.mktime(time.strptime(time.ctime())),
              time.mktime(time.strptime(time.asctime())), int(time.strftime("%s"))):
    assert found == now, (found, now)
assert time.gmtime()[:6] == time.gmtime(now)[:6] != time.gmtime(now - 1)[:6]
assert time.strftime("%Y", time.gmtime(0)) == "1970" and time.ctime(0) == time.ctime(0.0)
assert date.today() == datetime.now().date() == date.fromtimestamp(now)
class Own(datetime): pass
assert type(Own.now()) is Own and isinstance(datetime.now(), datetime)
"""
    before = datetime.datetime.now
    run(tmp_path, source)
    assert before() <= datetime.datetime.now() < before() + datetime.timedelta(seconds=60)


@pytest.mark.adr("0119-D1")
def test_a_clock_is_found_by_its_module_and_name(tmp_path: Path) -> None:
    source = """
import importlib, time, timeit
for clock in (timeit.default_timer, time.time, time.monotonic, time.process_time_ns, time.sleep):
    assert getattr(importlib.import_module(clock.__module__), clock.__name__) is clock
assert timeit.default_timer.__name__ == "perf_counter"
"""
    run(tmp_path, source)


@pytest.mark.adr("0119-D6")
def test_clocks_begin_alike_in_every_run(tmp_path: Path) -> None:
    source = """
import builtins, time, torch
def read():
    return [time.monotonic(), time.perf_counter_ns(), time.process_time(), time.time() % 1]
began = read(), time.time()
x = torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
torch.cuda.synchronize()
builtins.found = (*began[0], *read(), time.time() - began[1])
"""
    import builtins

    found = []
    try:
        for _ in range(2):
            run(tmp_path, source)
            found.append(vars(builtins).pop("found"))
            time.sleep(0.01)
    finally:
        vars(builtins).pop("found", None)
    assert found[0] == found[1]


@pytest.mark.adr("0119-D7")
def test_sleep_is_no_work_of_the_processor(tmp_path: Path) -> None:
    source = """
import threading, time
time.sleep(5)
others = [threading.Thread(target=time.sleep, args=(9,)) for _ in range(2)]
for each in others: each.start()
time.sleep(3)
for each in others: each.join()
assert time.monotonic() > 86400 + 14
assert 0 < time.process_time() < 1e-5 and 0 < time.thread_time() < 1e-5
assert time.process_time() < os.times().user < 1e-5
"""
    run(tmp_path, "import os\n" + source)


@pytest.mark.adr("0119-D3")
def test_pythons_own_modules_wait_for_what_is_outside(tmp_path: Path) -> None:
    source = """
import sched, subprocess, sys, time
begun = time.monotonic()
subprocess.run([sys.executable, "-c", "pass"], timeout=60, check=True)
assert time.monotonic() - begun < 1e-3
plan = sched.scheduler()
plan.enter(7, 1, lambda: None)
plan.run()
assert round(time.monotonic() - begun, 3) == 7
"""
    run(tmp_path, source)


@pytest.mark.adr("0119-D1")
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


@pytest.mark.adr("0119-D1")
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


@pytest.mark.adr("0119-D2")
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


@pytest.mark.adr("0119-D3")
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


@pytest.mark.adr("0119-D4")
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


@pytest.mark.adr("0119-D1")
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


@pytest.mark.adr("0119-D5")
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


REFUSED = """
import math, os, time
calls = [lambda: time.time(1), lambda: time.perf_counter_ns(1), lambda: os.times(1),
         lambda: time.clock_gettime("x"), lambda: time.clock_gettime(), lambda: time.sleep(1, 2),
         lambda: time.localtime("x"), lambda: time.sleep("x"), lambda: time.sleep(-1),
         lambda: time.sleep(math.nan), lambda: time.sleep(math.inf)]
said = []
for call in calls:
    try:
        call()
    except Exception as error:
        said.append(repr(error))
assert len(said) == len(calls), said
"""


def test_what_pythons_clocks_refuse_is_refused_in_pythons_words(tmp_path: Path) -> None:
    real: dict[str, list[str]] = {}
    exec(REFUSED, real)
    run(tmp_path, f"{REFUSED}\nassert said == {real['said']!r}, said\n")
