"""Ranks that are threads of one process, as in PyTorch's own tests of DTensor and FSDP2."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402

TESTS = """
import copy, sys, unittest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.common_distributed import MultiThreadedTestCase

class Tests(MultiThreadedTestCase):
    world_size = 4

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_all_reduce(self):
        x = torch.ones(3, device="cuda") * self.rank
        dist.all_reduce(x)
        self.assertEqual(x, torch.full((3,), 6.0, device="cuda"))

    def test_dtensor(self):
        mesh = init_device_mesh("cuda", (2, 2))
        t = torch.arange(16.0, device="cuda").view(4, 4)
        d = distribute_tensor(t, mesh, [Shard(0), Shard(1)])
        self.assertEqual(d.to_local().shape, (2, 2))
        whole = d.redistribute(mesh, [Replicate(), Replicate()])
        self.assertEqual((d @ whole).full_tensor(), t @ t)

    def test_fsdp2(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).cuda()
        plain = copy.deepcopy(model)
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        x = torch.randn(4, 8, device="cuda")
        model(x).sum().backward()
        plain(x).sum().backward()
        for one, other in zip(model.parameters(), plain.parameters()):
            self.assertEqual(one.grad.full_tensor(), other.grad)

    def test_devices(self):
        torch.cuda.set_device(self.rank)
        dist.barrier()
        self.assertEqual(torch.cuda.current_device(), self.rank)
        model = torch.nn.Linear(4, 4).cuda()
        fully_shard(model)
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        self.assertEqual(model.weight.grad.device.index, self.rank)

    def test_a_failing_rank_is_told(self):
        if self.rank == 2:
            raise ValueError("of rank 2")
        dist.barrier()

suite = unittest.defaultTestLoader.loadTestsFromTestCase(Tests)
result = unittest.TextTestRunner(stream=open(sys.argv[1], "w")).run(suite)
assert result.testsRun == 5 and not result.failures
(failed, message), = result.errors
assert "test_a_failing_rank" in failed.id() and "of rank 2" in message, message
"""


def test_pytorchs_tests_with_a_thread_per_rank_run_on_devices(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(TESTS)
    context = simulated(path, tmp_path / "output")
    assert any(each.template.name == "aten.mm" for each in context.op_log.instances)
    # Nobody waited for a timeout.
    assert context.simulation.now_ps < 10**12


@pytest.mark.parametrize("nprocs", [1, 2])
def test_each_thread_has_a_current_device_and_streams(tmp_path: Path, nprocs: int) -> None:
    path = tmp_path / "program.py"
    path.write_text("""
import threading
import torch

first = torch.cuda.current_device()
side = torch.cuda.Stream(3)
torch.cuda.set_device(3)
torch.cuda.set_stream(side)
met = threading.Barrier(2)

def work():
    assert torch.cuda.current_device() == first
    assert torch.cuda.current_stream(3) == torch.cuda.default_stream(3)
    torch.cuda.set_device(2)
    met.wait()
    met.wait()
    assert torch.cuda.current_device() == 2 == torch.ones(1, device="cuda").device.index

thread = threading.Thread(target=work)
thread.start()
met.wait()
assert torch.cuda.current_device() == 3 and torch.cuda.current_stream() == side
torch.cuda.set_device(1)
met.wait()
thread.join()
assert torch.cuda.current_device() == 1
assert torch.cuda.current_stream(3) == side
""")
    simulated(path, nprocs=nprocs)


def test_a_key_that_is_set_while_a_rank_catches_up_is_found(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("""
import os, time
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
store = dist.TCPStore("localhost", 1234, 2, rank == 0)
if rank == 0:
    # Its host is ahead of the others when it begins to wait.
    for _ in range(100):
        torch.ones(4, device="cuda")
    store.wait(["key"])
    assert store.get("key") == b"value"
else:
    time.sleep(1e-6)
    store.set("key", "value")
""")
    simulated(path, nprocs=2)
