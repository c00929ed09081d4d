"""Tests as PyTorch has them of DTensor: one passes, one fails, one is skipped."""

import torch
import torch.distributed as dist
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms


class Tests(DTensorTestBase):
    @with_comms
    def test_passes(self):
        x = torch.ones(2, device=self.device_type)
        dist.all_reduce(x)
        assert x.is_cuda
        assert x.tolist() == [4.0, 4.0]

    @with_comms
    def test_fails(self):
        if self.rank == 1:
            raise ValueError("of rank 1")
        dist.barrier()

    @with_comms
    def test_skips(self):
        self.skipTest("for a reason")
