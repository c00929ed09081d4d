"""Symmetric memory of PyTorch: kernels that go to other ranks' memory, signals, collectives.

python symmetric_memory.py CASE
"""

import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
import triton
import triton.language as tl

from kernbench.errors import UsageError
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
group = dist.group.WORLD
N = 1024
after, before = (rank + 1) % size, (rank - 1) % size


@triton.jit
def sum_of_all(pointers, out, n: tl.constexpr, ranks: tl.constexpr):
    lane = tl.arange(0, n)
    table = pointers.to(tl.pointer_type(tl.int64))
    total = tl.zeros((n,), tl.float32)
    for index in range(ranks):
        total += tl.load(tl.load(table + index).to(tl.pointer_type(tl.float32)) + lane)
    tl.store(out + lane, total)


@triton.jit
def load_peer(theirs, out, n: tl.constexpr):
    lane = tl.arange(0, n)
    tl.store(out + lane, tl.load(theirs + lane) * 2)


@triton.jit
def put(theirs, flag, value, n: tl.constexpr):
    lane = tl.arange(0, n)
    tl.store(theirs + lane, lane * 2.0 + value)
    tl.atomic_xchg(flag, 1, sem="release", scope="sys")


@triton.jit
def take(mine, flag, out, n: tl.constexpr):
    while tl.atomic_cas(flag, 1, 0, sem="acquire", scope="sys") != 1:
        pass
    lane = tl.arange(0, n)
    tl.store(out + lane, tl.load(mine + lane) + 1)


def shared(*shape, dtype=torch.float32):
    result = symmetric.empty(*shape, dtype=dtype, device=device)
    return result, symmetric.rendezvous(result, group)


def kernels_reach_what_ranks_exchange() -> None:
    x, handle = shared(N)
    assert symmetric.is_symm_mem_tensor(x)
    assert not symmetric.is_symm_mem_tensor(torch.ones(2, device="cuda"))
    assert (handle.rank, handle.world_size, handle.buffer_size) == (rank, size, 4 * N)
    assert len(set(handle.buffer_ptrs)) == len(set(handle.signal_pad_ptrs)) == size
    x.copy_(torch.arange(N) + rank)
    handle.barrier()
    out = torch.empty(N, device=device)
    sum_of_all[(1,)](handle.buffer_ptrs_dev, out, N, size)
    wanted = torch.arange(N) * size + sum(range(size))
    assert torch.equal(out.cpu(), wanted.float())
    theirs = handle.get_buffer(after, (N,), torch.float32)
    assert theirs.device == device
    load_peer[(1,)](theirs, out, N)
    assert torch.equal(out.cpu(), 2.0 * (torch.arange(N) + after))
    # PyTorch's operations, from an offset on, and of another type.
    assert (x[:4] + theirs[:4]).tolist() == [2.0 * index + rank + after for index in range(4)]
    assert handle.get_buffer(after, (2,), torch.float32, 8).tolist() == [8.0 + after, 9.0 + after]
    assert handle.get_buffer(after, (1,), torch.int32).item() == theirs[0].view(torch.int32).item()
    handle.barrier()
    # The same memory again gives what is known, and a workspace grows.
    assert symmetric.rendezvous(x, group) is handle
    assert symmetric.get_symm_mem_workspace(group.group_name, 512).buffer_size == 512
    assert symmetric.get_symm_mem_workspace(group.group_name, 2048).buffer_size == 2048


def kernels_wait_for_signals_of_others() -> None:
    x, handle = shared(N)
    out = torch.empty(N, device=device)
    if rank == 0:
        large = torch.ones(1024, 1024, device=device)
        large @ large  # it is late
    pads = [handle.get_signal_pad(index, (1,), torch.int32) for index in range(size)]
    put[(1,)](handle.get_buffer(after, (N,), torch.float32), pads[after], float(rank), N)
    take[(1,)](x, pads[rank], out, N)
    assert torch.equal(out.cpu(), torch.arange(N) * 2.0 + before + 1)
    assert pads[rank].item() == 0


def streams_signal_each_other() -> None:
    x, handle = shared(4)
    x.fill_(-1)
    handle.barrier()
    for step in range(3):
        if rank == 0:
            x.fill_(step)
            handle.put_signal(1, channel=2)
            handle.wait_signal(1)
        elif rank == 1:
            handle.wait_signal(0, channel=2)
            assert handle.get_buffer(0, (4,), torch.float32).tolist() == [float(step)] * 4
            handle.put_signal(0)
    symmetric._SymmetricMemory.memset32(x.view(torch.int32), 1, 7, 2)
    assert x.view(torch.int32)[1:3].tolist() == [7, 7]


def operations_reduce_as_their_names_say() -> None:
    name, ops = group.group_name, torch.ops.symm_mem
    rows = [(torch.arange(64) % 5 + index).float() for index in range(size)]
    total = sum(rows)

    def made():
        x, _ = shared(64, dtype=torch.bfloat16)
        return x.copy_(rows[rank])

    def empty(*shape):
        return torch.empty(*shape, dtype=torch.bfloat16, device=device)

    part = 64 // size
    result = {
        "one_shot": ops.one_shot_all_reduce(made(), "sum", name),
        "out": ops.one_shot_all_reduce_out(made(), "sum", name, empty(64)),
        "copy": ops.one_shot_all_reduce_copy(made(), rows[rank].bfloat16().cuda(), "sum", name),
        "two_shot": ops.two_shot_all_reduce_(made(), "sum", name),
        "switch": ops.multimem_all_reduce_(made(), "sum", name),
        "switch_one": ops.multimem_one_shot_all_reduce(made(), "sum", name),
    }
    for which, value in result.items():
        assert torch.equal(value.float().cpu(), total), which
    rows_of = ops.reduce_scatter_out(made(), name, False, empty(part))
    assert torch.equal(rows_of.float().cpu(), total.chunk(size)[rank])
    columns = ops.reduce_scatter_out(made().view(4, 16), name, True, empty(4, 16 // size))
    assert torch.equal(columns.float().cpu(), total.view(4, 16).chunk(size, 1)[rank])
    gathered = ops.multimem_all_gather_out(torch.full_like(rows_of, rank), name, made())
    assert gathered.tolist() == [float(index) for index in range(size) for _ in range(part)]


def mistakes_are_named() -> None:
    x, handle = shared(8)
    ops = torch.ops.symm_mem
    for call, said in (
        (lambda: symmetric.rendezvous(torch.ones(2, device="cuda"), group), "is not symmetric"),
        (lambda: handle.get_buffer(size, (8,), torch.float32), f"from 0 to {size - 1}"),
        (lambda: handle.get_buffer(0, (9,), torch.float32), "ends at byte 36"),
        (lambda: ops.one_shot_all_reduce(x.new_ones(8), "sum", "0"), "must be allocated with"),
        (lambda: ops.two_shot_all_reduce_(x, "max", "0"), "only sum is supported"),
        (lambda: symmetric.set_signal_pad_size(0), "4 bytes or more"),
    ):
        with pytest.raises(UsageError, match=said):
            call()
    with pytest.raises(UnsupportedTorchError, match=r"symm_mem\.nvshmem_broadcast"):
        ops.nvshmem_broadcast(x, 0, "0")
    uneven = symmetric.empty(8 + rank, device=device)
    with pytest.raises(UsageError, match="32 bytes on rank 0, 36 bytes on rank 1"):
        symmetric.rendezvous(uneven, group)


def a_signal_never_comes() -> None:
    x, handle = shared(N)
    if rank == 0:
        take[(1,)](x, handle.get_signal_pad(0, (1,), torch.int32), torch.empty_like(x), N)


def memory_is_shared() -> None:
    shared(N)


def a_peer_is_loaded() -> None:
    x, handle = shared(N)
    x.fill_(1)
    handle.barrier()
    if rank == 0:
        load_peer[(1,)](handle.get_buffer(1, (N,), torch.float32), torch.empty_like(x), N)


globals()[sys.argv[1]]()
