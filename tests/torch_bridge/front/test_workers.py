"""Processes that a rank starts are its threads, and have the interface of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.runtime_api import SpawnException  # noqa: E402
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError  # noqa: E402
from tests.torch_bridge.running import PROGRAMS, simulated  # noqa: E402


@pytest.mark.adr("0115-D1")
@pytest.mark.filterwarnings("default")
def test_workers_of_a_rank_do_what_real_ones_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = PROGRAMS / "workers.py"
    address = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    real = subprocess.run(
        [sys.executable, str(path), f"{tmp_path}/real"],
        env=os.environ | address,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    with pytest.warns(UserWarning, match="runs as a thread of that rank"):
        simulated(path, f"{tmp_path}/simulated", nprocs=2)
    printed = capfd.readouterr().err
    for rank in range(2):
        found = (tmp_path / f"simulated{rank}").read_text()
        assert found == (tmp_path / "real0").read_text()
    for words in ("words\n", "ValueError: of a worker\n"):
        assert words in real.stderr
        assert printed.count(words) == 2


@pytest.mark.adr("0115-D2")
@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("mp.get_context('fork').Process(target=print).start()", "ForkProcess.start .* no group"),
        ("mp.Process(target=print).start()", "Process.start in rank 0.* main thread"),
        ("futures.ProcessPoolExecutor()", "concurrent.futures.ProcessPoolExecutor"),
    ],
)
def test_ranks_outside_of_a_world_and_pools_are_refused_by_name(
    tmp_path: Path, call: str, says: str
) -> None:
    path = tmp_path / "program.py"
    path.write_text(f"import multiprocessing as mp, concurrent.futures as futures\n{call}")
    with pytest.raises(SpawnException) as raised:
        simulated(path, nprocs=2)
    with pytest.raises(UnsupportedTorchError, match=says):
        raise raised.value.errors[0]
