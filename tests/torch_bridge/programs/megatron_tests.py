"""Made-up tests of megatron-core: one fails."""

import pytest
import torch
import torch.distributed as dist

seen = []


def test_sum():
    dist.init_process_group("nccl")
    x = torch.ones(2, device=torch.cuda.current_device())
    dist.all_reduce(x)
    assert x.tolist() == [2, 2]
    seen.append(dist.get_rank())
    assert len(seen) == 1


@pytest.mark.parametrize(("value", "other"), [(1, 1), (1, 2)])
def test_values(value, other):
    assert value == other


class TestSetup:
    def setup_method(self, method):
        self.name = method.__name__

    def test_name(self):
        assert self.name == "test_name"
