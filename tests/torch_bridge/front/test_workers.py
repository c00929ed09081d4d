"""Worker processes of ranks do what real ones do, in their own memory and time."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench import RuntimeContext  # noqa: E402
from kernbench.torch_bridge import run_torchrun  # noqa: E402
from tests.torch_bridge.running import PROGRAMS, simulated  # noqa: E402

ADDRESS = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}


def really(program: str, *args: str) -> str:
    """Run a program in a real process, and return what it prints to stderr."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / program), *args],
        env={**os.environ, **ADDRESS},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stderr


@pytest.mark.adr("0177-D1")
def test_workers_of_a_rank_do_what_real_ones_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = really("workers.py", f"{tmp_path}/real")
    simulated("workers.py", f"{tmp_path}/simulated", nprocs=2)
    printed = capfd.readouterr().err
    for rank in range(2):
        text = (tmp_path / f"simulated{rank}").read_text()
        assert text == (tmp_path / "real0").read_text()
    for words in ("words\n", "ValueError: of a worker\n"):
        assert words in said
        assert printed.count(words) == 2


@pytest.mark.adr("0177-D2")
@pytest.mark.adr("0177-D3")
def test_pools_and_executors_do_what_real_ones_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A real segment of that name, as of another run, is in nobody's way.
    monkeypatch.setenv("SEGMENT", f"of{os.getpid()}")
    name = f"segment{os.environ['SEGMENT']}0"
    other = SharedMemory(name, create=True, size=8)
    try:
        simulated("pools.py", f"{tmp_path}/simulated", nprocs=2)
        assert other.buf is not None
        assert bytes(other.buf[:8]) == bytes(8)
    finally:
        other.close()
        other.unlink()
    really("pools.py", f"{tmp_path}/real")
    for rank in range(2):
        text = (tmp_path / f"simulated{rank}").read_text()
        assert text == (tmp_path / "real0").read_text()


@pytest.mark.adr("0177-D1")
@pytest.mark.adr("0177-D3")
def test_loaders_make_batches_beside_their_rank(tmp_path: Path) -> None:
    """64 items of 10 ms in batches of 8, and steps of 20 ms: the first batch, then the steps."""
    simulated("loading.py", f"{tmp_path}/four", 4, nprocs=2)
    simulated("loading.py", f"{tmp_path}/none", 0, nprocs=2)
    for rank in range(2):
        took, batches, *rest = (tmp_path / f"four{rank}").read_text().splitlines()
        assert float(took) == pytest.approx(8 * 0.01 + 8 * 0.02, abs=0.001)
        # Batch n is of worker n modulo 4, whose copy of the data set counts for itself.
        expected = [[item, item // 8 % 4, item % 8 + 1 + item // 32 * 8] for item in range(64)]
        assert json.loads(batches) == expected
        assert rest[:4] == ["0", "True", "[[0, 1], [4, 5], [2, 3], [6, 7]]", "7"]
        alone, _, seen, *_ = (tmp_path / f"none{rank}").read_text().splitlines()
        assert float(alone) == pytest.approx(64 * 0.01 + 8 * 0.02, abs=0.001)
        assert seen == "64"


@pytest.mark.adr("0177-D4")
def test_names_of_shared_memory_are_those_of_a_run_and_a_host(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "import os\n"
        "from multiprocessing.shared_memory import SharedMemory\n"
        "first = int(os.environ['LOCAL_RANK']) == 0\n"
        "segment = SharedMemory('of_tests', create=True, size=8) if first else None\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if first:\n"
        "    segment.buf[0] = 1 + dist.get_rank()\n"
        "dist.barrier()\n"
        "mine = SharedMemory('of_tests'); seen = mine.buf[0]\n"
        "assert seen == (1 if dist.get_rank() < 2 else 3), seen\n"
    )
    machine = tmp_path / "nodes.yaml"
    machine.write_text(
        "name: nodes\nbase: h100-sxm\nsizes: [4]\nhost: null\nlinks: {scale_out: {"
        "sips_per_node: 2, topology: switch, bandwidth_gbps: 50, latency_ns: 5000}}\n"
    )
    before = set(Path("/dev/shm").iterdir())
    context = RuntimeContext(f"{machine}:2x2", 4, data=False, check=False)
    code = compile(path.read_text(), str(path), "exec")
    with context:
        run_torchrun(context, path, code, [str(path)], 2, num_nodes=2)
    left = set(Path("/dev/shm").iterdir()) - before
    assert not [item for item in left if "of_tests" in item.name]


@pytest.mark.adr("0177-D1")
def test_a_worker_that_joins_a_group_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "import multiprocessing as mp, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "worker = mp.Process(target=dist.init_process_group, args=('gloo',))\n"
        "worker.start(); worker.join()\n"
        "assert worker.exitcode == 1\n"
    )
    simulated(path, nprocs=2)
    assert "a worker that rank 0 has started: it would be a rank outside" in capfd.readouterr().err


def test_two_files_of_a_data_set_are_mapped_by_workers(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    path = tmp_path / "program.py"
    path.write_text(
        "import os, time\n"
        "from datasets import Dataset, disable_caching\n"
        "import torch.distributed as dist\n"
        "from tqdm import tqdm\n"
        "dist.init_process_group('gloo')\n"
        "disable_caching()\n"
        "def doubled(rows):\n"
        "    return {'y': [2 * x for x in rows['x']], 'pid': [os.getpid()] * len(rows['x'])}\n"
        "data = Dataset.from_dict({'x': list(range(12))})\n"
        "made = data.map(doubled, batched=True, batch_size=3, num_proc=2)\n"
        "assert made['y'][:] == list(range(0, 24, 2))\n"
        "assert os.getpid() not in made['pid'][:]\n"
        "for _ in tqdm(range(3)):\n"
        "    time.sleep(0.2)\n"
        "    dist.barrier()\n"
    )
    simulated(path, nprocs=4)


@pytest.mark.usefixtures("collects_own")
def test_loaders_that_a_program_leaves_open_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    simulated("abandoned_loaders.py", nprocs=2)
    gc.collect()
    assert not unraisable


KEEPS = """
import os, sys, torch
class Lock:
    def __del__(self, getpid=os.getpid, getppid=os.getppid):
        os.write(1, b"%d %d " % (getpid(), getppid()))
sys.modules["torch"]._lock_of_a_library = Lock()
"""
ENDS = """
import os, pathlib, sys
from kernbench import RuntimeContext
from kernbench.torch_bridge import run_torchrun
with RuntimeContext("ahbm:1", 1) as context:
    run_torchrun(context, pathlib.Path("p.py"), compile(sys.argv[1], "p.py", "exec"), ["p.py"], 1)
print(os.getpid(), os.getppid(), flush=True)
from kernbench.torch_bridge.front import workers
vars(workers).update(dict.fromkeys(vars(workers)))  # as Python does, in an order of its own
"""


def test_what_a_library_keeps_of_os_works_when_python_has_cleared_modules(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS, KEEPS], cwd=tmp_path, capture_output=True, text=True
    )
    assert not done.stderr
    real, kept = done.stdout.splitlines()
    assert kept.split() == real.split()
