"""Processes that a program starts before it belongs to a group are ranks of the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import DeadlockError, UsageError  # noqa: E402
from tests.torch_bridge.running import PROGRAMS, simulated  # noqa: E402


@pytest.mark.adr("0101-D1")
@pytest.mark.adr("0101-D2")
@pytest.mark.adr("0101-D3")
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_started_processes_do_what_real_ones_do(
    tmp_path: Path, method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = PROGRAMS / "started_processes.py"
    real = subprocess.run(
        [sys.executable, str(path), f"{tmp_path}/real", method, "cpu"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    context = simulated(path, f"{tmp_path}/simulated", method, "cuda")
    found = (tmp_path / "simulated").read_text()
    assert found == (tmp_path / "real").read_text()
    factor = 3 if method == "fork" else 1
    assert f"(0, 0, [10.0, 10.0], 'go', 1, {factor}, 'by the parent')" in found
    for printed in (real.stderr, capfd.readouterr().err):
        assert printed.count("ValueError: of a rank\n") == 1
    # Each on a device of its own, and nobody waits for what was ended.
    assert {each.sips[0] for each in context.op_log.instances} == {0, 1, 2, 3}
    assert context.simulation.now_ps < 10**12


FEW = """
import multiprocessing as mp
import time
import torch.distributed as dist

def work(rank, size):
    dist.init_process_group("nccl", rank=rank, world_size=size, init_method="tcp://localhost:29512")
    dist.barrier()

if __name__ == "__main__":
    for rank in range({started}):
        mp.Process(target=work, args=(rank, {size})).start()
"""


@pytest.mark.adr("0101-D2")
@pytest.mark.parametrize(
    ("started", "size", "error", "says"),
    [
        (5, 5, UsageError, "4 processes were started .*--machine NAME:5"),
        (3, 4, DeadlockError, "rank 2 .* waits for rank 3"),
    ],
)
def test_more_processes_than_devices_and_too_few_for_a_group_end_at_once(
    tmp_path: Path, started: int, size: int, error: type[Exception], says: str
) -> None:
    path = tmp_path / "program.py"
    path.write_text(FEW.format(started=started, size=size))
    with pytest.raises(error, match=says):
        simulated(path)


def test_a_sleeping_kernel_takes_cycles_of_the_device_on_its_stream(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("""
import torch
times = {}
for cycles in (0, 1_500_000):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(cycles)
    end.record()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.ones(3, device="cuda")
    side.synchronize()
    assert not cycles or not end.query()
    end.synchronize()
    times[cycles] = begin.elapsed_time(end)
print(times[1_500_000] - times[0])
""")
    context = simulated(path)
    sleep = [each for each in context.op_log.instances if each.template.name == "_sleep"]
    short, long = (each.template.duration_ps for each in sleep)
    sip = context.machine.sip_at(0)
    assert long - short == sip.cycles_ps(1_500_000)


def test_processes_that_fail_leave_their_devices_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("""
import multiprocessing as mp, sys, time
import torch

def work():
    # The host is ahead of the simulation as it ends.
    for _ in range(100):
        torch.ones(3, device="cuda")
    sys.exit(3)

if __name__ == "__main__":
    for _ in range(3):
        started = [mp.Process(target=work) for _ in range(4)]
        for process in started:
            process.start()
        while any(each.exitcode is None for each in started):
            time.sleep(1e-6)
        assert [each.exitcode for each in started] == [3] * 4
""")
    simulated(path)
