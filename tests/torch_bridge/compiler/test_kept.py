"""What the compiler keeps on disk holds for the same machine, data mode and kernbench."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import kernbench
from kernbench.hardware import changed_machine, load_machine
from kernbench.runtime_api import RuntimeContext
from tests.torch_bridge.compiler.test_compiler import run_compiled, start_compiled

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.adr("0126-D5")
@pytest.mark.adr("0126-D11")
def test_a_file_that_is_damaged_is_written_anew(tmp_path: Path) -> None:
    done = run_compiled(tmp_path, "inductor_kept.py", args=["3", "damage"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "made"


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.adr("0126-D5")
@pytest.mark.adr("0126-D11")
def test_files_serve_other_processes_and_no_other_machine(tmp_path: Path) -> None:
    """A process that is killed while it compiles, and one beside it, leave whole files."""

    def printed(*args: str, machine: str = "h100-sxm", share: int = 0) -> str:
        asked = ["--set", f"host.compile_share={share}"]
        done = run_compiled(
            tmp_path, "inductor_kept.py", *asked, machine=machine, args=["3", *args]
        )
        assert done.returncode == 0, done.stderr
        assert ("s are compiling" in done.stdout) is bool(share)
        return done.stdout.split()[0]

    program = "inductor_kept.py"
    with start_compiled(tmp_path, program, args=["3"]) as killed:
        until = time.monotonic() + 120
        while not list((tmp_path / "inductor").glob("*/*.py")) and time.monotonic() < until:
            time.sleep(0.01)
        killed.kill()
    with start_compiled(tmp_path, program, args=["3"]) as beside:
        assert printed() in ("made", "kept")
        said, error = beside.communicate()
        assert beside.returncode == 0, error
        assert said.split()[0] in ("made", "kept")
    # What a host takes decides nothing that is compiled.
    assert printed("damage", share=1) == "kept"
    assert printed(machine="h200") == "made"


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.adr("0126-D2")
def test_a_run_that_tunes_writes_what_a_run_writes_that_finds_its_choices(tmp_path: Path) -> None:
    printed, logs = [], []
    for number in range(2):
        log = tmp_path / f"log{number}"
        done = run_compiled(tmp_path, "inductor_tuned.py", "--log", str(log))
        assert done.returncode == 0, done.stderr
        printed.append(int(done.stdout.split()[0]))
        logs.append(log.read_bytes())
    assert printed[0] > printed[1] == 0
    assert logs[0] == logs[1]


@pytest.mark.campaign
def test_results_of_pytorchs_convolutions_are_looked_at_as_a_gpu_lays_them(tmp_path: Path) -> None:
    done = run_compiled(tmp_path, "inductor_tuned_images.py")
    assert done.returncode == 0, done.stderr


def test_what_no_choice_of_the_compiler_depends_on_compiles_nothing_anew() -> None:
    from kernbench.torch_bridge.compiler.kept import kept_for

    def key(changes: dict[str, object], *, data: bool = False) -> str:
        machine = changed_machine(load_machine("a100-sxm-80g"), changes)
        with RuntimeContext(machine=machine, data=data) as context:
            return kept_for(context.run)

    assert key({}) == key({"name": "another", "host.slowdown": 2.0})
    assert len({key({}), key({}, data=True), key({"sip.clock_ghz": 1.0})}) == 3


def test_another_version_has_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernbench.torch_bridge.compiler.kept import kept_for

    with RuntimeContext(machine="ahbm") as context:
        key = kept_for(context.run)
        monkeypatch.setattr(kernbench, "__version__", "0.0.0")
        assert kept_for(context.run) != key
