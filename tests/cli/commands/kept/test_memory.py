"""``kernbench memory``, and ``--memory`` of the commands that run programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import kernbench

BENCH = """
def run(torch):
    a = torch.randn(256, 256)
    b = a @ a
    del a
    torch.ahbm.synchronize()
"""


def test_a_kept_run_says_what_was_in_memory(tmp_path: Path) -> None:
    (tmp_path / "bench.py").write_text(BENCH)
    kept = tmp_path / "kept.run"
    done = kernbench("run", tmp_path / "bench.py", "--save", kept)
    assert "in memory at the peak of rank 0, 512.00 KiB" in done.output
    shown = kernbench("memory", kept)
    assert shown.exit_code == 0, shown.output
    for said in ("at the peak of rank 0: 512.00 KiB on device 0", "256x256", "bench.py:3", "other"):
        assert said in shown.output
    data = json.loads(kernbench("memory", kept, "--json", "-").output)
    assert data["peak"]["bytes"] == data["ranks"][0]["peak_bytes"] == 2 * 4 * 256**2
    wrong = kernbench("memory", kept, "--rank", "3")
    assert (wrong.exit_code, "rank 3 allocated nothing" in wrong.output) == (2, True)
    none = kernbench("memory", tmp_path / "bench.py")
    assert (none.exit_code, "is no run saved with --save" in none.output) == (2, True)


def test_a_run_shows_its_memory_if_asked(tmp_path: Path) -> None:
    bench, idle = tmp_path / "bench.py", tmp_path / "idle.py"
    bench.write_text(BENCH)
    idle.write_text("def run(torch): pass\n")
    assert "at the peak of rank 0" in kernbench("run", bench, "--memory").output
    assert "in memory" not in kernbench("run", bench).output
    done = kernbench("run", idle, "--memory")
    assert (done.exit_code, "nothing was allocated on a device" in done.output) == (0, True)


@pytest.mark.parametrize("damage", [0, 100])
def test_a_damaged_run_is_refused(tmp_path: Path, damage: int) -> None:
    (tmp_path / "bench.py").write_text(BENCH)
    kept = tmp_path / "kept.run"
    kernbench("run", tmp_path / "bench.py", "--save", kept)
    kept.write_bytes(kept.read_bytes()[:damage])
    done = kernbench("memory", kept)
    assert done.exit_code == 2
    assert "kept.run: " in done.output
