"""Event loops of asyncio: waits take simulated time, and those for the outside real time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from kernbench.errors import DeadlockError
from kernbench.runtime_api.front.multiprocessing import SpawnException
from tests.torch_bridge.running import simulated

PROGRAM = """
import asyncio, json, os, sys, threading, time

async def main():
    loop, said = asyncio.get_running_loop(), {}
    start = time.perf_counter(), loop.time(), time.monotonic()
    def passed():
        return [time.perf_counter() - start[0], loop.time() - start[1], time.monotonic() - start[2]]
    await asyncio.sleep(100)
    said["sleep"] = passed()
    said["gather"] = await asyncio.gather(*[asyncio.sleep((3 - i) * 100, i) for i in range(3)])
    said["gathered"] = passed()
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 100)
    except TimeoutError:
        said["timeout"] = passed()
    said["thread"] = await asyncio.to_thread(lambda: (time.sleep(100), "done")[1])
    said["threaded"] = passed()
    called = asyncio.Event()
    threading.Timer(100, loop.call_soon_threadsafe, (called.set,)).start()
    await called.wait()
    said["called"] = passed()
    loop.call_later(100, called.clear)
    while called.is_set():
        await asyncio.sleep(10)
    said["later"] = passed()
    return said

said = asyncio.run(main())
with open(sys.argv[1] + os.environ["RANK"] + ".json", "w") as out:
    json.dump(said, out)
"""


@pytest.mark.adr("0119-D3")
@pytest.mark.parametrize("nprocs", [1, 2])
def test_a_loop_waits_in_simulated_time(tmp_path: Path, nprocs: int) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    start_s = time.monotonic()
    simulated(path, f"{tmp_path}/rank", nprocs=nprocs)
    assert time.monotonic() - start_s < 50, "700 s are to be waited for"
    for rank in range(nprocs):
        said: dict[str, Any] = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert (said["gather"], said["thread"]) == ([0, 1, 2], "done")
        expected = {
            "sleep": 100, "gathered": 400, "timeout": 500, "threaded": 600, "called": 700,
        }  # fmt: skip
        for name, seconds in expected.items():
            assert said[name] == pytest.approx([seconds] * 3, abs=0.01), name
        assert 800 - 0.01 <= said["later"][0] <= 810 + 0.01


OUTSIDE = """
import asyncio, sys, time

async def wait(seconds, timeout):
    start = time.perf_counter()
    process = await asyncio.create_subprocess_exec("sleep", str(seconds))
    try:
        return await asyncio.wait_for(process.wait(), timeout), time.perf_counter() - start
    except TimeoutError:
        process.kill()
        return await process.wait(), time.perf_counter() - start

async def main():
    code, took = await wait(0.3, 30)
    assert code == 0 and 0.1 < took < 5, (code, took)
    code, took = await wait(30, 0.1)
    assert code == -9 and 0.05 < took < 5, (code, took)
    process = await asyncio.create_subprocess_exec("echo", "hello", stdout=-1)
    assert await process.communicate() == (b"hello\\n", None)

asyncio.run(main())
"""


@pytest.mark.adr("0119-D3")
def test_while_something_outside_is_waited_for_time_goes_as_it_really_does(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(OUTSIDE)
    simulated(path)


def test_a_loop_that_nothing_can_wake_is_a_deadlock(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("import asyncio\nasyncio.run(asyncio.Event().wait())\n")
    with pytest.raises((DeadlockError, SpawnException), match="wakes an event loop of asyncio"):
        simulated(path, nprocs=2)
