"""What tensors take of a device; each function asserts what PyTorch's allocator would say.

python memory.py CASE
"""

import os
import sys

import pytest
import torch
import torch.distributed as dist


def programs_see_what_their_tensors_take() -> None:
    cuda, MIB = torch.cuda, 1 << 20
    assert cuda.memory_allocated() == cuda.memory_reserved() == 0
    x = torch.empty(4 * MIB, device="cuda")
    assert cuda.memory_allocated() == 16 * MIB == cuda.memory_reserved()
    view = x[:10]
    del x
    assert cuda.memory_allocated() == 16 * MIB  # the view holds on to it
    y = view.clone()
    assert cuda.memory_allocated() == 16 * MIB + 512
    del view
    assert cuda.memory_allocated(0) == 512
    assert cuda.max_memory_allocated() == 16 * MIB + 512
    cuda.reset_peak_memory_stats()
    assert cuda.max_memory_allocated() == 512
    assert cuda.memory_allocated("cuda:1") == 0
    free, total = cuda.mem_get_info()
    assert total == cuda.get_device_properties(0).total_memory
    assert total - free == 18 * MIB
    cuda.empty_cache()
    assert cuda.memory_reserved() == 2 * MIB == total - cuda.mem_get_info()[0]
    assert "Allocated memory" in cuda.memory_summary()
    y.untyped_storage().resize_(2 * MIB)
    assert cuda.memory_allocated() == 2 * MIB
    y.untyped_storage().resize_(0)
    assert cuda.memory_allocated() == 0
    assert torch.accelerator.memory_allocated() == 0


def saved_tensors_and_gradients_count_while_they_live() -> None:
    n = 1 << 20
    x = torch.zeros(n, device="cuda", requires_grad=True)
    y = x
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        y = y.exp()
    assert torch.cuda.memory_allocated() - before == 5 * 4 * n
    loss = y.sum()
    del y
    loss.backward()
    assert torch.cuda.memory_allocated() == 2 * 4 * n + 512  # x, its gradient, the loss


def too_much_is_an_error_that_names_the_allocation() -> None:
    kept = torch.zeros(1 << 20, device="cuda")
    with pytest.raises(torch.cuda.OutOfMemoryError) as raised:
        kept.expand(1 << 10, -1).clone()
    assert "Tried to allocate 4.00 GiB for aten.clone" in str(raised.value)
    count = torch.cuda.memory_stats()["num_ooms"]
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(1 << 50, device="cuda")  # nor has the host so much
    assert torch.cuda.memory_stats()["num_ooms"] == count + 1
    kept = [kept + index for index in range(1 << 10)]  # where the error is


def too_much_for_a_process_is_the_devices_error_too() -> None:
    torch.cuda.set_per_process_memory_fraction((1 << 49) / torch.cuda.mem_get_info()[1])
    torch.empty(1 << 50, dtype=torch.int8, device="cuda")  # where the error is


def too_much_for_the_host_too_is_the_devices_error() -> None:
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")  # where the error is


def too_much_of_what_was_done_before_is_an_error_too() -> None:
    x = torch.zeros(1 << 20, device="cuda")
    kept = [x + x for _ in range(100)]  # where the error is
    assert len(kept) < 100


def a_run_ends_with_the_peak_of_each_rank() -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    torch.empty((4 if rank < 2 else 8) << 20, dtype=torch.uint8, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0


def tensors_of_collectives_are_freed_when_the_program_frees_them() -> None:
    from torch.distributed.fsdp import fully_shard

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    used = torch.cuda.memory_allocated
    MIB = 1 << 20

    for _ in range(8):
        x = torch.empty(MIB, device="cuda")
        dist.all_reduce(x)
        work = dist.all_reduce(x, async_op=True)
        assert work.result()[0] is x
        work.wait()
        assert work.result()[0] is x
    assert used() == 4 * MIB
    assert torch.cuda.max_memory_allocated() <= 8 * MIB
    del x, work
    assert used() == 0

    layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(8))).cuda()
    for layer in layers:
        fully_shard(layer)
    fully_shard(layers)
    shards = used()
    assert shards == 8 * MIB // 2, shards
    x = torch.ones(1, 512, device="cuda")
    for step in range(4):
        torch.cuda.reset_peak_memory_stats()
        layers(x).sum().backward()
        layers.zero_grad()
        # Two layers are whole at a time, one of them twice while it is put together, and gradients.
        assert used() <= shards + MIB, (step, used() / MIB)
        assert torch.cuda.max_memory_allocated() <= 2 * shards + 5 * MIB


def contexts_and_buffers() -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    MIB = 1 << 20
    dist.init_process_group("nccl")
    before, total = torch.cuda.mem_get_info()
    assert (
        round(total / 2**30, 2)
        == 79.11
        == round(torch.cuda.get_device_properties(rank).total_memory / 2**30, 2)
    )
    assert total - before == 500 * MIB
    x = torch.zeros(1 << 20, device="cuda")
    for _ in range(2):
        dist.all_reduce(x)
    taken = before - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()
    assert 24 * 9.4 * MIB - 1 <= taken <= 24 * 9.4 * MIB, taken / MIB
    assert torch.cuda.memory_allocated() == 4 * MIB
    rest = torch.cuda.mem_get_info()[0]
    with pytest.raises(torch.OutOfMemoryError, match="contexts, libraries and other ranks"):
        torch.empty(rest + 1, dtype=torch.uint8, device="cuda")
    full = torch.empty(rest // (2 * MIB) * 2 * MIB, dtype=torch.uint8, device="cuda")
    other = dist.new_group([0, 1])
    with pytest.raises(torch.OutOfMemoryError, match=r"225\.60 MiB for buffers of"):
        dist.all_reduce(x, group=other)
    del full


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
