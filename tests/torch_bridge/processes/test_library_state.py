"""What libraries keep for a process is each rank's own, although ranks share their modules."""

from __future__ import annotations

import importlib
import logging
import shutil
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import PROGRAMS, real, simulated  # noqa: E402

PROGRAM = "library_state.py"


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site-packages"
    shutil.copytree(PROGRAMS / "site", folder)
    # All ranks share what has extension modules.
    (folder / "a_locking_library" / f"_native{EXTENSION_SUFFIXES[0]}").touch()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return folder


@pytest.mark.adr("0095-D1")
@pytest.mark.parametrize("is_imported", [False, True])
def test_classes_that_remember_their_process_remember_each_rank(
    libraries: Path, is_imported: bool
) -> None:
    if is_imported:
        # Installed or not, and without types.
        state = importlib.import_module("accelerate.state")

        state.PartialState._shared_state["rank"] = "of who runs kernbench"
    try:
        simulated(PROGRAM, "classes_that_remember", nprocs=3)
        state = sys.modules["accelerate.state"].PartialState._shared_state
        assert state == ({"rank": "of who runs kernbench"} if is_imported else {})
    finally:
        for name in [module for module in sys.modules if module.startswith("accel")]:
            del sys.modules[name]


@pytest.mark.adr("0095-D3")
def test_a_rank_may_wait_for_others_while_it_holds_a_librarys_lock(
    libraries: Path,
) -> None:
    simulated(PROGRAM, "locks_of_a_library", nprocs=2)


@pytest.mark.adr("0095-D3")
def test_a_rank_may_wait_for_others_while_it_holds_the_lock_of_progress_bars() -> None:
    bars = pytest.importorskip("tqdm").tqdm
    before = dict(vars(bars))
    simulated(PROGRAM, "bars", nprocs=3)
    assert dict(vars(bars)) == before


@pytest.mark.parametrize("nprocs", [1, 2])
def test_a_shared_library_may_start_threads_and_timers_as_it_is_imported(
    libraries: Path, nprocs: int
) -> None:
    sys.modules.pop("a_locking_library", None)
    context = simulated(PROGRAM, "threads_of_a_library", nprocs=nprocs)
    assert context.run.simulation.now_ps >= 2 * 10**12


@pytest.mark.adr("0095-D1")
def test_hooks_of_all_modules_are_hooks_of_one_ranks_modules() -> None:
    simulated(PROGRAM, "hooks_of_all_modules", nprocs=2)
    assert not torch.nn.modules.module._global_forward_hooks


@pytest.mark.adr("0095-D1")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_fsdp1_saves_and_loads_sharded_states_of_several_ranks(tmp_path: Path) -> None:
    simulated(PROGRAM, "checkpoints_of_fsdp1", tmp_path / "checkpoint", nprocs=2)


@pytest.mark.adr("0095-D4")
def test_loggers_are_each_ranks_own_as_in_real_processes(tmp_path: Path) -> None:
    path = PROGRAMS / "loggers.py"
    for rank in range(3):
        real(path, tmp_path, rank)
    names = ("level", "propagate", "disabled", "handlers", "filters")
    loggers = [logging.getLogger(name) for name in (None, "of.the.program", "another")]
    before = [[str(getattr(logger, name)) for name in names] for logger in loggers]
    simulated(path, tmp_path, nprocs=3)
    for rank in range(3):
        expected = (tmp_path / f"real {rank}").read_text()
        assert expected
        assert (tmp_path / f"simulated {rank}").read_text() == expected
    assert [[str(getattr(logger, name)) for name in names] for logger in loggers] == before
    assert logging.root.manager.disable == 0
