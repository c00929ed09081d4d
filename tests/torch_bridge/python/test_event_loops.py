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


@pytest.mark.adr("0119-D3")
@pytest.mark.parametrize("nprocs", [1, 2])
def test_a_loop_waits_in_simulated_time(tmp_path: Path, nprocs: int) -> None:
    start_s = time.monotonic()
    simulated("event_loop.py", f"{tmp_path}/rank", nprocs=nprocs)
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


@pytest.mark.adr("0119-D3")
def test_while_something_outside_is_waited_for_time_goes_as_it_really_does() -> None:
    simulated("event_loop_of_processes.py")


def test_a_loop_that_nothing_can_wake_is_a_deadlock(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("import asyncio\nasyncio.run(asyncio.Event().wait())\n")
    with pytest.raises((DeadlockError, SpawnException), match="wakes an event loop of asyncio"):
        simulated(path, nprocs=2)
