"""Ranks that differ, and twins that do not: ``fold_differences.py CASE [RANK]``.

The rank that differs is RANK. What is the same for all is a step of a small model.
"""

import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

case, odd = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
WIDTH = 64
is_odd = rank == odd


def x(rows: int = 16, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(rows, WIDTH, device="cuda", dtype=dtype)


def square(count: int = 1) -> torch.Tensor:
    tensor = torch.ones(WIDTH, WIDTH, device="cuda")
    for _ in range(count):
        tensor = tensor @ tensor
    return tensor


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).cuda()


def step(net: nn.Module, tensor: torch.Tensor) -> None:
    net(tensor).sum().backward()
    net.zero_grad()


def checkpoint() -> None:
    net = model()
    if is_odd:
        with tempfile.TemporaryDirectory() as folder:
            torch.save(net.state_dict(), Path(folder) / "model.pt")
    dist.barrier()


def source_prepares() -> None:
    value = square(3 if is_odd else 1)
    dist.broadcast(value, src=odd)


def side_stream() -> None:
    with torch.cuda.stream(torch.cuda.Stream() if is_odd else torch.cuda.current_stream()):
        square(2)
    dist.all_reduce(x())


def sleeps() -> None:
    if is_odd:
        time.sleep(0.01)
    dist.all_reduce(x())


def straggles() -> None:
    square(5 if is_odd else 1)
    dist.all_reduce(x())


def uneven_batch() -> None:
    step(DistributedDataParallel(model()), x(24 if is_odd else 16))


def sequence_lengths() -> None:
    length = 8 + 8 * rank
    tensor = torch.ones(2, 4, length, 16, device="cuda")
    nn.functional.scaled_dot_product_attention(tensor, tensor, tensor)
    dist.all_reduce(x())


def logs_loss() -> None:
    loss = model()(x()).sum()
    if is_odd:
        print(f"loss {loss.item():.1f}")
    dist.all_reduce(x())


def conditional_reduce() -> None:
    dist.all_reduce(x())
    if is_odd:
        dist.all_reduce(x())


def own_group() -> None:
    group = dist.new_group([odd])
    if is_odd:
        dist.all_reduce(x(), group=group)
    dist.all_reduce(x())


def own_dtype() -> None:
    value = x(dtype=torch.bfloat16 if is_odd else torch.float32)
    value @ value.T
    dist.all_reduce(x())


def other_order() -> None:
    value = square()
    first, second = (torch.relu, torch.sigmoid) if is_odd else (torch.sigmoid, torch.relu)
    first(value), second(value)
    dist.all_reduce(x())


def holds_memory() -> None:
    held = torch.empty(1 << 20, device="cuda") if is_odd else None
    dist.all_reduce(x())
    del held


def evaluates() -> None:
    net = model()
    step(net, x())
    dist.barrier()
    if is_odd:
        with torch.no_grad():
            net(x())
    dist.barrier()


def accumulates() -> None:
    net = DistributedDataParallel(model())
    with net.no_sync():
        for _ in range(3 if is_odd else 2):
            net(x()).sum().backward()
    net(x()).sum().backward()


def seeds_decide() -> None:
    torch.manual_seed(rank)
    rows = int(torch.randint(1, 512, ()))
    square()
    x(rows) * 2
    dist.all_reduce(x())


def neighbours() -> None:
    """The ends of a pipeline of all ranks, whose group is that of all."""
    value = x()
    if rank:
        dist.recv(value, rank - 1)
    if rank + 1 < ranks:
        dist.send(value, rank + 1)


def uneven_all_to_all() -> None:
    sent, taken = [1 + index for index in range(ranks)], [1 + rank] * ranks
    out = torch.empty(sum(taken), device="cuda")
    dist.all_to_all_single(out, torch.ones(sum(sent), device="cuda"), taken, sent)


def objects() -> None:
    result: list[object] = [None] * ranks
    dist.all_gather_object(result, "x" * (5000 if is_odd else 10))


def profiles() -> None:
    net = model()
    if is_odd:
        with torch.profiler.profile():
            step(net, x())
        torch.cuda.synchronize()
        x().sum().item()
    else:
        step(net, x())
    dist.barrier()


def finds_file() -> None:
    """Each rank has a file of its own, but for one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shard"
        if not is_odd:
            path.write_text("")
        if path.exists():
            square(2)
    dist.all_reduce(x())


def reads_environment() -> None:
    if os.environ["RANK"] == str(odd):
        os.environ["EXTRA"] = "1"
    square(1 + int(os.environ.get("EXTRA", "0")))
    dist.all_reduce(x())


def works_on_host() -> None:
    def update(value: int) -> int:
        return value + 1

    total = 0
    for _ in range(5000 if is_odd else 10):
        total = update(total)
    square()
    dist.all_reduce(x())


def ends_early() -> None:
    dist.all_reduce(x())
    if is_odd:
        return
    square(2)


def hooks() -> None:
    net = model()
    if is_odd:
        net[0].register_forward_hook(lambda module, value, result: result * 2)
    step(net, x())
    dist.all_reduce(x())


def first_of_node() -> None:
    if local == 0:
        square(3)
    dist.all_reduce(x())


def last_of_all() -> None:
    if rank == ranks - 1:
        square(3)
    dist.all_reduce(x())


def one_row() -> None:
    """All ranks of one row of a mesh do more than those of the others."""
    mesh = init_device_mesh("cuda", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    if mesh["dp"].get_local_rank() == ranks // 2 - 1:
        square(3)
    dist.all_reduce(x(), group=mesh["tp"].get_group())
    dist.all_reduce(x(), group=mesh["dp"].get_group())


def copies() -> None:
    value = x()
    if is_odd:
        value.cpu()
    dist.all_reduce(value)


def root_differs() -> None:
    """Each rank names itself as the root of another group's broadcast."""
    mesh = init_device_mesh("cuda", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    group = mesh["tp"].get_group()
    first = rank // 2 * 2
    dist.broadcast(x(), src=first + (1 if rank // 2 == odd // 2 else 0), group=group)


# Twins: what depends on the rank changes no work.


def twin_prints() -> None:
    square()
    if rank == 0:
        print("one step")
    dist.all_reduce(x())


def twin_values() -> None:
    tensor = torch.full((WIDTH, WIDTH), float(rank), device="cuda")
    (tensor + rank) @ tensor
    dist.all_reduce(tensor)


def twin_seeds() -> None:
    torch.manual_seed(rank)
    torch.cuda.manual_seed(rank)
    step(model(), torch.randn(16, WIDTH, device="cuda"))
    dist.all_reduce(x())


def twin_shards() -> None:
    whole = torch.ones(ranks * 8, WIDTH, device="cuda")
    whole[rank * 8 : rank * 8 + 8] @ whole.T
    whole.narrow(0, rank * 8, 8) * 2
    dist.all_reduce(x())


def twin_branches() -> None:
    if is_odd:
        square(2)
    else:
        square(2)
    dist.all_reduce(x())


def twin_environment() -> None:
    os.environ["WHO"] = f"rank {rank:04}"
    name = hashlib.sha256(os.environ["WHO"].encode()).hexdigest()
    result: list[object] = [None] * ranks
    dist.all_gather_object(result, name)


def twin_broadcasts() -> None:
    value = square()
    dist.broadcast(value, src=ranks - 1)
    mesh = init_device_mesh("cuda", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    dist.all_reduce(value, group=mesh["tp"].get_group())
    dist.all_reduce(value, group=mesh["dp"].get_group())


def twin_trains() -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        net(x()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()


if __name__ == "__main__":
    globals()[case]()
