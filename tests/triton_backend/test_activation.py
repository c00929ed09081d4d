from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from triton.backends import backends
from triton.runtime import driver

from kernbench.errors import UsageError
from kernbench.triton_backend import activate
from kernbench.triton_backend.compiler import KernbenchBackend
from kernbench.triton_backend.driver import KernbenchDriver
from tests.programs import PROGRAMS
from tests.triton_backend.recording import RecordingLauncher

DRIVER_OUTCOME = str(PROGRAMS / "choose_driver.py")


def run_python(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *([] if code.endswith(".py") else ["-c"]), code],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), **env},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def active_launcher_of(driver_now: Any) -> Any:
    assert isinstance(driver_now, KernbenchDriver)
    return driver_now.launcher


@pytest.mark.adr("0001-D1")
def test_triton_finds_the_backend_through_its_entry_point() -> None:
    out = run_python(
        "import triton.backends as b; f = b.backends['kernbench'];"
        "print(f.compiler.__name__, f.driver.__name__)"
    )
    assert out.split() == ["KernbenchBackend", "KernbenchDriver"]
    assert backends["kernbench"].compiler is KernbenchBackend


@pytest.mark.adr("0001-D2")
def test_outside_a_run_triton_chooses_its_driver_as_if_kernbench_were_not_installed() -> None:
    assert run_python(DRIVER_OUTCOME) == run_python(DRIVER_OUTCOME, TRITON_BACKENDS_IN_TREE="1")
    assert "0 active drivers" in run_python(DRIVER_OUTCOME)


@pytest.mark.adr("0001-D2")
def test_importing_triton_loads_no_more_of_kernbench_than_the_plug_in() -> None:
    loaded = run_python(
        "import sys, triton; print(*sorted(m for m in sys.modules if m.startswith('kernbench')));"
        "print(*(set(sys.modules) & {'torch', 'numpy', 'simpy', 'greenlet', 'pydantic'}))"
    ).splitlines()
    assert loaded[0].split() == [
        "kernbench",
        "kernbench.errors",
        "kernbench.logs",
        "kernbench.triton_backend",
        "kernbench.triton_backend.compiler",
        "kernbench.triton_backend.driver",
    ]
    assert loaded[1] == ""


@pytest.mark.parametrize(
    "first",
    [
        "kernbench",
        "kernbench.triton_backend",
        "kernbench.triton_backend.compiler",
        "kernbench.triton_backend.driver",
        "kernbench.triton_backend.launcher",
        "kernbench.triton_backend.activation",
        "triton.runtime",
    ],
)
def test_any_module_can_be_imported_first(first: str) -> None:
    python = run_python(
        f"import {first}; import triton.backends as b; print(b.backends['kernbench'].compiler)"
    )
    assert python == "<class 'kernbench.triton_backend.compiler.KernbenchBackend'>\n"


def test_a_run_works_where_triton_does_not_read_entry_points() -> None:
    run_python(
        "import triton.backends as b; assert 'kernbench' not in b.backends\n"
        "from kernbench.triton_backend import activate\n"
        "with activate(None): assert 'kernbench' in b.backends",
        TRITON_BACKENDS_IN_TREE="1",
    )


def test_a_method_that_a_later_triton_requires_does_not_break_its_import() -> None:
    python = run_python(str(PROGRAMS / "later_triton.py"))
    assert python.split() == ["KernbenchBackend", "KernbenchDriver"]


def test_inside_a_run_it_is_active_and_afterwards_there_is_no_driver_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "_active", None)
    launcher = RecordingLauncher()
    with activate(launcher):
        assert active_launcher_of(driver.active) is launcher
    assert driver._active is None
    assert driver._default is None


def test_the_previous_driver_comes_back_also_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = object()
    monkeypatch.setattr(driver, "_active", gpu)
    with pytest.raises(ZeroDivisionError), activate(RecordingLauncher()):
        raise ZeroDivisionError
    assert driver._active is gpu


def test_a_nested_run_gives_the_outer_one_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_active", None)
    outer, inner = RecordingLauncher(), RecordingLauncher()
    with activate(outer):
        with activate(inner):
            assert active_launcher_of(driver.active) is inner
        assert active_launcher_of(driver.active) is outer
    assert driver._active is None


def test_runs_may_end_in_the_order_they_began(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = object()
    monkeypatch.setattr(driver, "_active", gpu)
    launchers = [RecordingLauncher() for _ in range(3)]
    runs = [activate(launcher) for launcher in launchers]
    for run in runs:
        run.__enter__()
    runs[0].__exit__(None, None, None)
    assert active_launcher_of(driver.active) is launchers[2]
    runs[1].__exit__(None, None, None)
    assert active_launcher_of(driver.active) is launchers[2]
    runs[2].__exit__(None, None, None)
    assert driver._active is gpu


def test_a_driver_that_the_program_chose_inside_the_run_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "_active", None)
    chosen: Any = object()
    with activate(RecordingLauncher()):
        driver.set_active(chosen)
    assert driver._active is chosen


def test_a_run_refuses_to_begin_while_triton_interprets_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with (
        pytest.raises(UsageError, match="TRITON_INTERPRET is set"),
        activate(RecordingLauncher()),
    ):
        pass
