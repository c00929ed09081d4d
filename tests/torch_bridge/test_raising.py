"""Errors of every kind come out of whatever calls code of the user, and end the rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.tiers import of_campaigns  # noqa: E402
from tests.torch_bridge.running import real, simulated  # noqa: E402

ROOT = Path(__file__).parents[2]


def test_what_comes_out_of_pytorch_is_what_comes_out_of_real_processes(tmp_path: Path) -> None:
    result = []
    for run in (simulated, real):
        folder = tmp_path / run.__name__
        folder.mkdir()
        run("raising.py", folder, nprocs=2)
        result.append(
            [json.loads((folder / f"rank{number}.json").read_text()) for number in (0, 1)]
        )
    for mine, right in zip(*result, strict=True):
        assert {k: v for k, v in mine.items() if right[k] != v} == {}
    assert len(result[0][0]) >= 100
    # An iteration that StopIteration ends is Python's own; nothing else is swallowed.
    nothing = ("returns None", "returns []", "returns 0")
    silent = {place for place, what in result[0][0].items() if what in nothing}
    assert silent == {"StopIteration in items", "SystemExit in thread"}


@pytest.mark.parametrize(("kind", "place"), [(0, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 0)])
def test_every_kind_comes_out_of_a_launch_and_ends_the_rank(kind: int, place: int) -> None:
    with pytest.raises(BaseException) as raised:
        simulated("raising_launches.py", kind, place, nprocs=2)
    names = {0: "StopIteration", 2: "GeneratorExit", 4: "KeyboardInterrupt", 5: "GreenletExit"}
    failed = getattr(raised.value, "errors", {1: raised.value})
    assert list(failed) == [1]
    if kind == 3:
        assert str(failed[1]) == "rank 1 called sys.exit('x')"
    else:
        assert type(failed[1]).__name__ == names.get(kind, "Interrupt")


@pytest.mark.parametrize(
    ("nprocs", "waits_for"),
    [
        of_campaigns(1, "pool"),
        (2, "thread"),
        of_campaigns(1, "thread"),
        of_campaigns(2, "pool"),
    ],
)
def test_ctrl_c_in_a_thread_of_a_rank_ends_the_run(waits_for: str, nprocs: int) -> None:
    # In a process of its own, which has nothing else to finalize: there an interrupt would be lost.
    code = f"""
import signal
from tests.torch_bridge.running import simulated
signal.signal(signal.SIGALRM, signal.default_int_handler)
try:
    simulated("interrupted.py", "{waits_for}", nprocs={nprocs})
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout == "interrupted\n", done.stderr
    assert "Exception in thread" not in done.stderr
