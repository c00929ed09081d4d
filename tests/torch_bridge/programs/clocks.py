"""Programs that time themselves, each a function; the asserts are for modeled clocks.

python clocks.py CASE [ARGUMENTS]
"""

import importlib
import json
import math
import os
import queue
import sched
import subprocess
import sys
import threading
import time
import timeit
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, TimeoutError, as_completed
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.benchmark import Timer


def seconds(clock_ns: Callable[[], int]) -> float:
    return clock_ns() / 1e9


def a_step_takes_what_the_device_says() -> None:
    x = torch.ones(512, 512, device="cuda")
    clocks: list[Callable[[], float]] = [
        time.time,
        time.perf_counter,
        time.monotonic,
        time.process_time,
        time.thread_time,
    ]
    clocks += [partial(seconds, getattr(time, f"{clock.__name__}_ns")) for clock in clocks]
    clocks += [
        partial(time.clock_gettime, item)
        for item in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC, time.CLOCK_PROCESS_CPUTIME_ID)
    ]
    clocks += [lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC) / 1e9, timeit.default_timer]
    clocks += [lambda: os.times().elapsed, lambda: os.times().user]
    clocks += [
        lambda: datetime.now().timestamp(),
        lambda: datetime.now(UTC).timestamp(),
        lambda: datetime.utcnow().timestamp(),
        lambda: datetime.today().timestamp(),
    ]
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


def what_says_the_present_date_is_modeled() -> None:
    time.sleep(-time.time() % 86400 + 3 * 86400)  # To the beginning of a day in UTC.
    now = int(time.time())
    assert now % 86400 == 0
    for result in (
        time.mktime(time.localtime()),
        time.mktime(time.strptime(time.ctime())),
        time.mktime(time.strptime(time.asctime())),
        int(time.strftime("%s")),
    ):
        assert result == now, (result, now)
    assert time.gmtime()[:6] == time.gmtime(now)[:6] != time.gmtime(now - 1)[:6]
    assert time.strftime("%Y", time.gmtime(0)) == "1970"
    assert time.ctime(0) == time.ctime(0.0)
    assert date.today() == datetime.now().date() == date.fromtimestamp(now)

    class Own(datetime):
        pass

    assert type(Own.now()) is Own
    assert isinstance(datetime.now(), datetime)


def a_clock_is_found_by_its_module_and_name() -> None:
    for clock in (
        timeit.default_timer,
        time.time,
        time.monotonic,
        time.process_time_ns,
        time.sleep,
    ):
        assert getattr(importlib.import_module(clock.__module__), clock.__name__) is clock
    assert timeit.default_timer.__name__ == "perf_counter"


def clocks_begin_alike_in_every_run(path: str) -> None:
    def read():
        return [time.monotonic(), time.perf_counter_ns(), time.process_time(), time.time() % 1]

    began = read(), time.time()
    torch.mm(*torch.ones(2, 64, 64, device="cuda"))
    torch.cuda.synchronize()
    result = (*began[0], *read(), time.time() - began[1])
    Path(path).write_text(json.dumps(result))


def sleep_is_no_work_of_the_processor() -> None:
    time.sleep(5)
    others = [threading.Thread(target=time.sleep, args=(9,)) for _ in range(2)]
    for item in others:
        item.start()
    time.sleep(3)
    for entry in others:
        entry.join()
    assert time.monotonic() > 86400 + 14
    assert 0 < time.process_time() < 1e-5
    assert 0 < time.thread_time() < 1e-5
    assert time.process_time() < os.times().user < 1e-5


def pythons_own_modules_wait_for_what_is_outside() -> None:
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], timeout=60, check=True)
    assert time.monotonic() - begun < 1e-3
    plan = sched.scheduler()
    plan.enter(7, 1, lambda: None)
    plan.run()
    assert round(time.monotonic() - begun, 3) == 7


def benchmarks_of_pytorch_say_modeled_time() -> None:
    x = torch.ones(512, 512, device="cuda")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(50):
        x @ x
    end.record()
    torch.cuda.synchronize()
    mean = Timer("x @ x", globals={"x": x}).timeit(50).mean
    assert abs(mean * 1e3 * 50 / begin.elapsed_time(end) - 1) < 0.05


def a_run_begins_at_the_real_time_and_each_rank_has_its_own() -> None:
    rank = int(os.environ["RANK"])
    begun = time.time()
    time.sleep(rank * 1000)
    took = time.time() - begun
    assert rank * 1000 <= took < rank * 1000 + 1e-3
    dist.init_process_group("gloo")
    dist.barrier()
    assert 1000 <= time.time() - begun < 1001
    print(f"begun {begun:.6f}")


def looking_takes_time(reading_ns: str) -> None:
    reading = int(reading_ns)
    first, second = time.perf_counter_ns(), time.perf_counter_ns()
    assert second - first == reading
    end = time.time() + 0.001
    looked = 1
    while time.time() < end:
        looked += 1
    assert abs(looked * reading - 1e6) < 1e3


def waits_that_nobody_ends_take_their_timeout() -> None:
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


def threads_of_a_process_sleep_side_by_side() -> None:
    begun = time.perf_counter()
    threads = [threading.Thread(target=time.sleep, args=(seconds,)) for seconds in (3, 5, 4)]
    for thread in threads:
        thread.start()
    for item in threads:
        item.join()
    assert round(time.perf_counter() - begun, 3) == 5


def measurements_end_when_blocks_take_equal_times() -> None:
    x, y = torch.ones(64, 64, device="cuda"), torch.ones(64)
    calls = 0

    def multiply():
        nonlocal calls
        calls += 1
        return x @ x

    exact = Timer("multiply()", globals={"multiply": multiply}).timeit(100).mean
    for name in ("blocked_autorange", "adaptive_autorange"):
        calls = 0
        result = getattr(Timer("multiply()", globals={"multiply": multiply}), name)()
        # The clock itself is looked at once in a block.
        assert abs(result.median / exact - 1) < 0.01, (name, result, exact)
        assert calls < 10_000
        # What takes the host's time only takes none.
        assert getattr(Timer("y.add(1)", globals={"y": y}), name)().median < 1e-6


def refused(path: str) -> None:
    # Wrong on purpose.
    calls = [
        lambda: time.time(1),  # type: ignore[call-arg]
        lambda: time.perf_counter_ns(1),  # type: ignore[call-arg]
        lambda: os.times(1),  # type: ignore[call-arg]
        lambda: time.clock_gettime("x"),  # type: ignore[arg-type]
        lambda: time.clock_gettime(),  # type: ignore[call-arg]
        lambda: time.sleep(1, 2),  # type: ignore[call-arg]
        lambda: time.localtime("x"),  # type: ignore[arg-type]
        lambda: time.sleep("x"),  # type: ignore[arg-type]
        lambda: time.sleep(-1),
        lambda: time.sleep(math.nan),
        lambda: time.sleep(math.inf),
    ]
    said = []
    for call in calls:
        try:
            call()
        except Exception as error:
            said.append(repr(error))
    assert len(said) == len(calls), said
    Path(path).write_text("\n".join(said))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
