from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
import time
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

import pytest

import kernbench.cli
from kernbench.cli.console.streams import interruptible
from tests.programs import PROGRAMS
from tests.tiers import of_campaigns


def interrupted(
    args: list[str],
    folder: Path,
    *,
    group: bool = False,
    sent: signal.Signals = signal.SIGINT,
) -> tuple[int, str]:
    """Interrupt a program when it says that it is ready; return its status and its stderr.

    With ``group`` all its processes are, as by a terminal.
    """
    with subprocess.Popen(
        [sys.executable, *args],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=group,
        # A shell starts its background jobs with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            (os.killpg if group else os.kill)(process.pid, sent)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, err


@pytest.mark.slow
@pytest.mark.adr("0011-D3")
def test_ctrl_c_ends_a_run_with_status_130_and_says_where_every_rank_was(tmp_path: Path) -> None:
    bench = str(PROGRAMS / "endless.py")
    status, err = interrupted(["-m", "kernbench", "run", bench, "--ranks", "2"], tmp_path)
    assert status == 130, err
    first, *ranks = err.splitlines()
    assert first == "interrupted", err
    assert sorted(line.split()[1:2] for line in ranks) == [["0"], ["1"]], err
    assert all("endless.py:" in line or "has not begun" in line for line in ranks), err


def classes_with_finalizers() -> list[tuple[str, str]]:
    """Return the module and the name of every class of ours that has a ``__del__``."""
    source = Path(kernbench.__file__).parent
    classes = []
    for path in source.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "def __del__" in text else ():
            if isinstance(node, ast.ClassDef) and any(
                isinstance(item, ast.FunctionDef) and item.name == "__del__" for item in node.body
            ):
                module = ".".join(path.relative_to(source.parent).with_suffix("").parts)
                classes.append((module, node.name))
    return classes


@pytest.mark.parametrize(("module", "name"), classes_with_finalizers())
@pytest.mark.usefixtures("collects_own")
def test_what_was_interrupted_before_it_was_made_is_dropped_in_silence(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "torch_bridge" in module:
        pytest.importorskip("torch")
    result = getattr(importlib.import_module(module), name)
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    result.__new__(result)
    gc.collect()
    assert said == []


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


@pytest.mark.adr("0110-D6")
def test_an_interrupt_waits_until_an_extension_module_is_initialised() -> None:
    """Its C++ calls Python, and has no place for an exception."""
    after: list[str] = []

    class Spec:
        origin = "/nowhere.so"

        @property
        def name(self) -> str:
            os.kill(os.getpid(), signal.SIGINT)
            deadline = time.monotonic() + 0.02
            while time.monotonic() < deadline:
                pass
            after.append("initialised")
            return "nowhere"

    def load_and_work_on() -> None:
        loader = ExtensionFileLoader("nowhere", "/nowhere.so")
        with contextlib.suppress(ImportError):
            loader.create_module(Spec())  # type: ignore[arg-type]
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            pass
        after.append("lost")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            load_and_work_on()
    finally:
        signal.signal(signal.SIGINT, before)
    assert set(after) == {"initialised"}


FINALIZER = """
import torch

class Dying:
    def __del__(self):
        print("ready", flush=True)
        for _ in range(10**7):  # for some tenths of a second
            pass

Dying()
while True:
    torch.ones(1, device="cuda")
"""


@pytest.mark.slow
@pytest.mark.adr("0011-D3")
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (signal.SIGINT, 130),
        of_campaigns(signal.SIGTERM, -signal.SIGTERM),
    ],
)
def test_a_signal_to_the_command_is_none_of_a_rank(
    sent: signal.Signals, status: int, tmp_path: Path
) -> None:
    """A rank of a PyTorch program has handlers and alarms of its own (ADR-0214)."""
    (tmp_path / "finalizer.py").write_text(FINALIZER)
    result, err = interrupted(["-m", "kernbench", "run", "finalizer.py"], tmp_path, sent=sent)
    assert result == status, err


def test_an_ignored_interrupt_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.campaign
@pytest.mark.slow
def test_ctrl_c_to_all_processes_of_validate_is_one_line(tmp_path: Path) -> None:
    lines = [f"A100,gemm,fp16,{m},64,64,9.9,a source" for m in range(1, 100)]
    data = tmp_path / "rows.csv"
    data.write_text("\n".join(["device,op,dtype,m,n,k,time_us,source", *lines]))
    program = [str(PROGRAMS / "told_validation.py"), str(data), "--jobs", "2"]
    assert interrupted(program, tmp_path, group=True) == (130, "interrupted\n")


def test_ctrl_c_while_the_command_is_imported_is_status_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "kernbench.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "kernbench.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as status:
        kernbench.cli.main()
    assert status.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
