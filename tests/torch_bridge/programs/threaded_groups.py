"""Tests of the kind that PyTorch has: each starts a thread per rank.

python threaded_groups.py OUTPUT
"""

import copy
import sys
import unittest
from pathlib import Path

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
        assert torch.equal(x, torch.full((3,), 6.0, device="cuda"))

    def test_dtensor(self):
        mesh = init_device_mesh("cuda", (2, 2))
        t = torch.arange(16.0, device="cuda").view(4, 4)
        d = distribute_tensor(t, mesh, [Shard(0), Shard(1)])
        assert d.to_local().shape == (2, 2)
        whole = d.redistribute(mesh, [Replicate(), Replicate()])
        torch.testing.assert_close((d @ whole).full_tensor(), t @ t)

    def test_fsdp2(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).cuda()
        plain = copy.deepcopy(model)
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        # Threads share the generator, and others have drawn from it while the model was copied.
        torch.manual_seed(1)
        x = torch.randn(4, 8, device="cuda")
        model(x).sum().backward()
        plain(x).sum().backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad.full_tensor(), other.grad)

    def test_devices(self):
        torch.cuda.set_device(self.rank)
        dist.barrier()
        assert torch.cuda.current_device() == self.rank
        model = torch.nn.Linear(4, 4).cuda()
        fully_shard(model)
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        assert model.weight.grad.device.index == self.rank

    def test_a_failing_rank_is_told(self):
        if self.rank == 2:
            raise ValueError("of rank 2")
        dist.barrier()


suite = unittest.defaultTestLoader.loadTestsFromTestCase(Tests)
with Path(sys.argv[1]).open("w") as output:
    result = unittest.TextTestRunner(stream=output).run(suite)
assert result.testsRun == 5
assert not result.failures
((failed, message),) = result.errors
assert "test_a_failing_rank" in failed.id()
assert "of rank 2" in message, message
