"""Processes that a program starts before it belongs to a group are ranks of the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import DeadlockError, UsageError  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

STARTS = """
import os, sys, time
from multiprocessing import connection
import torch, torch.distributed as dist, torch.multiprocessing as mp

method, device, size = sys.argv[2], sys.argv[3], 4
calls = 0
factor = 1

class Worker(mp.get_context(method).Process):
    def __init__(self, rank, pipe):
        super().__init__(name=f"worker {rank}")
        self.rank, self.pipe = rank, pipe

    def run(self):
        work(self.rank, self.pipe)

def work(rank, pipe):
    global calls
    calls += 1
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29533"
    dist.init_process_group("gloo" if device == "cpu" else "nccl", rank=rank, world_size=size)
    if device == "cuda":
        torch.cuda.set_device(rank)
    x = torch.full((2,), rank + 1.0, device=device)
    dist.all_reduce(x)
    word = pipe.recv()
    pipe.send((rank, dist.get_rank(), x.tolist(), word, calls, factor, os.environ["GIVEN"]))
    if rank == 3:
        pipe.recv()
    dist.destroy_process_group()
    if rank == 2:
        raise ValueError("of a rank")
    sys.exit(rank * 2)

def main():
    global factor
    factor = 3
    os.environ["GIVEN"] = "by the parent"
    context, found, started, pipes = mp.get_context(method), [], [], []
    # In another order than that of their ranks.
    for rank in reversed(range(size)):
        mine, its = context.Pipe()
        process = Worker(rank, its) if rank == 1 else context.Process(target=work, args=(rank, its))
        found.append((process.is_alive(), process.exitcode))
        process.start()
        its.close()
        started.append(process)
        pipes.append(mine)
    found.append((len({each.pid for each in started}), started[0].is_alive()))
    for pipe in pipes:
        pipe.send("go")
    ready = connection.wait(pipes, timeout=60)
    found.append(bool(ready))
    found += [pipe.recv() for pipe in pipes]
    receiver, sender = context.Pipe(duplex=False)
    found += [receiver.poll(), receiver.poll(0.01), receiver.writable, sender.readable]
    sender.send_bytes(b"abc")
    found += [receiver.poll(), receiver.recv_bytes()]
    try:
        receiver.send(1)
    except OSError as error:
        found.append(str(error))
    receiver.close()
    try:
        sender.send(1)
    except BrokenPipeError:
        found.append("broken")
    receiver, sender = context.Pipe(duplex=False)
    sender.send("last")
    sender.close()
    found += [receiver.recv(), receiver.poll()]
    try:
        receiver.recv()
    except EOFError:
        found.append("closed")
    pipes[0].send("go on")
    for process in started:
        process.join()
        found.append((process.is_alive(), process.exitcode))
    found.append(mp.active_children())
    # Those of a second world begin anew.
    sleeper = context.Process(target=time.sleep, args=(600,))
    sleeper.start()
    sleeper.join(0.05)
    found.append((sleeper.is_alive(), sleeper.exitcode))
    sleeper.terminate()
    sleeper.join()
    found.append(sleeper.exitcode)
    daemon = context.Process(target=time.sleep, args=(600,), daemon=True)
    daemon.start()
    with open(sys.argv[1], "w") as file:
        print(*found, sep="\\n", file=file)

if __name__ == "__main__":
    main()
"""


@pytest.mark.adr("0101-D1")
@pytest.mark.adr("0101-D2")
@pytest.mark.adr("0101-D3")
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_started_processes_do_what_real_ones_do(
    tmp_path: Path, method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.py"
    path.write_text(STARTS)
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
