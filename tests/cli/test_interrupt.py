from __future__ import annotations

import ast
import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kernbench
from kernbench.cli.interrupt import interruptible

BENCH = """
def run(torch):
    torch.multiprocessing.spawn(worker, args=(torch,), nprocs=torch.world_size)

def worker(rank, torch):
    print("ready", flush=True)
    while True:
        torch.ones(4)
        torch.ahbm.synchronize()
"""


@pytest.mark.slow
@pytest.mark.adr("0011-D3")
def test_ctrl_c_ends_a_run_with_status_130_and_says_where_every_rank_was(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(BENCH)
    command = [sys.executable, "-m", "kernbench", "run", "endless.py", "--ranks", "2"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts its background jobs with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, err
    first, *ranks = err.splitlines()
    assert first == "interrupted", err
    assert sorted(line.split()[1:2] for line in ranks) == [["0"], ["1"]], err
    assert all("endless.py:" in line or "has not begun" in line for line in ranks), err


def classes_with_finalizers() -> list[tuple[str, str]]:
    """Return the module and the name of every class of ours that has a ``__del__``."""
    source = Path(kernbench.__file__).parent
    found = []
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(
                isinstance(each, ast.FunctionDef) and each.name == "__del__" for each in node.body
            ):
                module = ".".join(path.relative_to(source.parent).with_suffix("").parts)
                found.append((module, node.name))
    return found


@pytest.mark.parametrize(("module", "name"), classes_with_finalizers())
def test_what_was_interrupted_before_it_was_made_is_dropped_in_silence(
    module: str, name: str
) -> None:
    if "torch_bridge" in module:
        pytest.importorskip("torch")
    made = getattr(importlib.import_module(module), name)
    made.__new__(made).__del__()


class InterruptedWhileDying:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass


def die_and_work_on() -> None:
    InterruptedWhileDying()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        pass


def test_an_interrupt_in_a_finalizer_is_not_lost() -> None:
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            die_and_work_on()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_ignored_interrupt_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
