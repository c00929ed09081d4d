"""What a real process has once, every simulated process has for itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import PROGRAMS, simulated  # noqa: E402

PROGRAM = "process_state.py"


@pytest.mark.parametrize("is_copied", [True, False])
def test_pythons_random_numbers_go_on_where_they_were(is_copied: bool) -> None:
    import random

    from kernbench.torch_bridge.base.random_numbers import PythonRandom

    state = PythonRandom()
    assert state.is_copied, "this Python keeps the state elsewhere"
    state.is_copied = is_copied
    before = random.getstate()
    try:
        random.seed(3)
        random.gauss(0, 1)
        kept = state.get()
        expected = [random.gauss(0, 1), *(random.random() for _ in range(700))]
        random.seed(4)
        state.put(kept)
        assert [random.gauss(0, 1), *(random.random() for _ in range(700))] == expected
    finally:
        random.setstate(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pytorchs_random_numbers_go_on_where_they_were(dtype: Any) -> None:
    from kernbench.torch_bridge.base.random_numbers import TorchRandom

    before = torch.get_rng_state()
    state = TorchRandom()
    assert state.is_watched, "this PyTorch keeps the state elsewhere"
    try:
        # One of a pair of normal numbers: the next draws nothing.
        first = torch.randn((), dtype=dtype)
        kept = state.get()
        assert state.get() is kept
        expected = [torch.randn((), dtype=dtype) for _ in range(700)]
        assert state.get() is not kept
        state.put(kept)
        assert [torch.randn((), dtype=dtype) for _ in range(700)] == expected
        state.put(kept)
        torch.randn((), dtype=dtype)
        assert not torch.equal(state.get()[1], kept[1])
        assert first not in expected
    finally:
        torch.set_rng_state(before)


@pytest.mark.parametrize("other", [False, True])
def test_numpys_random_numbers_go_on_where_they_were(other: bool) -> None:
    import numpy as np

    from kernbench.torch_bridge.base.random_numbers import NumpyRandom

    numpy_random: Any = np.random
    generator, before = numpy_random.get_bit_generator(), np.random.get_state()
    state = NumpyRandom()
    assert state.is_copied, "this numpy keeps the state elsewhere"
    try:
        mine = state.copy(state.get())
        assert all(one is other for one, other in zip(mine, state.get(), strict=True))
        np.random.seed(3)
        np.random.randn()
        kept = state.get()
        expected = [np.random.randn(), *np.random.rand(700)]
        if other:
            state.put(mine)
            numpy_random.set_bit_generator(np.random.PCG64(5))
        else:
            np.random.seed(4)
        state.put(kept)
        assert [np.random.randn(), *np.random.rand(700)] == expected
    finally:
        numpy_random.set_bit_generator(generator)
        np.random.set_state(before)


@pytest.mark.parametrize("young", [500, 0])
def test_garbage_is_looked_for_as_often_as_in_processes_of_their_own(
    tmp_path: Path, young: int
) -> None:
    import gc

    before = gc.get_threshold()
    try:
        gc.set_threshold(young, 11, 12)
        simulated(PROGRAM, "garbage", tmp_path)
        assert gc.get_threshold() == (young, 11, 12)
    finally:
        gc.set_threshold(*before)
    for count in (2, 3):
        assert (tmp_path / str(count)).read_text() == str((young * count, 11, 12))


@pytest.mark.adr("0060-D2")
def test_ranks_that_take_turns_do_not_see_each_others_state(tmp_path: Path) -> None:
    import json
    import random

    import numpy as np

    simulated(PROGRAM, "everything", tmp_path, nprocs=3)
    assert torch.backends.cuda.math_sdp_enabled()
    for rank in range(3):
        seen = json.loads((tmp_path / f"rank{rank}.json").read_text())
        generator = torch.Generator().manual_seed(rank)
        own, numpys = random.Random(rank), np.random.RandomState(rank)
        dtype = torch.float64 if rank == 1 else torch.float32
        expected = torch.rand(1, generator=generator, dtype=dtype).item()
        assert seen == {
            "torch": expected,
            "device": expected,
            "random": [own.gauss(0, 1), own.gauss(0, 1), own.random()],
            "numpy": [numpys.randn(), numpys.randn(), numpys.rand()],
            "dtype": str(dtype),
            "argv": f"of rank {rank}",
            "environ": str(rank),
            "main": f"rank {rank}",
            "math": rank != 1,
            "grad": rank != 0,
            "current": rank,
            "rank": rank,
            "world": "3",
            "backend": "nccl",
        }


def test_programs_own_modules_are_each_ranks() -> None:
    simulated(PROGRAM, "own_modules", nprocs=2)


@pytest.mark.adr("0060-D2")
def test_what_spawns_ranks_finds_its_own_state_afterwards() -> None:
    simulated(PROGRAM, "of_who_spawns")


def test_a_method_that_ranks_run_is_one_of_a_copy() -> None:
    simulated(PROGRAM, "method_that_ranks_run", machine="ahbm:2")


def test_python_programs_outside_of_the_simulation_are_named(tmp_path: Path) -> None:
    context = simulated(PROGRAM, "programs_outside", tmp_path)
    said = [line for remark in context.run.remarks for line in remark()]
    (result,) = [line for line in said if "outside of the simulation" in line]
    assert ": child.py, this; ranks are started by --nproc-per-node" in result


@pytest.mark.adr("0060-D2")
@pytest.mark.parametrize("nprocs", [1, 2])
def test_threads_end_with_their_process_as_those_of_a_real_one_do(
    tmp_path: Path, nprocs: int
) -> None:
    import concurrent.futures.thread as executors
    import subprocess
    import sys

    command = [sys.executable, str(PROGRAMS / PROGRAM), "threads_that_end", str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)
    expected = (tmp_path / "real").read_text()
    assert expected.split() == ["False", "False", "thread", "task"]
    simulated(PROGRAM, "threads_that_end", tmp_path, nprocs=nprocs)
    for rank in range(nprocs):
        assert (tmp_path / str(rank)).read_text() == expected
    assert not executors._shutdown


def test_modules_that_a_finder_of_the_program_finds_are_each_processs_own() -> None:
    simulated(PROGRAM, "own_finder")


def test_a_process_has_a_main_thread_and_lists_its_own_threads(tmp_path: Path) -> None:
    simulated(PROGRAM, "threads", tmp_path, nprocs=2)
    seen = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert seen == [[True, 2, True, 1], [True, 3, True, 1]]


@pytest.mark.adr("0214-D4")
def test_an_event_loop_hears_the_signals_of_its_process_alone(tmp_path: Path) -> None:
    simulated(PROGRAM, "signals_in_a_loop", tmp_path, nprocs=2)
    seen = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert seen == ["Event loop stopped before Future completed.", True]
