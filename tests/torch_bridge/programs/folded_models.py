"""Two steps of a small model, split over ranks in several ways: ``folded_models.py CASE``.

With ``timed`` behind it rank 0 prints when it began, and when each step ended.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WIDTH, STEPS = 128, 2
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
is_timed = sys.argv[2:] == ["timed"]


def ended(what: str) -> None:
    if is_timed:
        torch.cuda.synchronize()
        if rank == 0:
            print(f"{what} at {time.perf_counter_ns()} ns", flush=True)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def blocks() -> nn.Sequential:
    with torch.device("cuda"):
        return nn.Sequential(Block(), Block())


def tp(model: nn.Module, mesh: DeviceMesh) -> None:
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def train(model: nn.Module, x: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    ended("begin")
    for index in range(STEPS):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        ended(f"step {index}")


def given() -> torch.Tensor:
    return torch.ones(32, WIDTH, device="cuda")


def ddp() -> None:
    train(DistributedDataParallel(blocks(), bucket_cap_mb=1), given())


def fsdp() -> None:
    model = blocks()
    shard(model, init_device_mesh("cuda", (ranks,)))
    train(model, given())


def hsdp() -> None:
    model = blocks()
    shard(model, init_device_mesh("cuda", (2, ranks // 2), mesh_dim_names=("r", "s")))
    train(model, given())


def tp_dp() -> None:
    mesh = init_device_mesh("cuda", (ranks // 4, 4), mesh_dim_names=("dp", "tp"))
    model = blocks()
    tp(model, mesh["tp"])
    shard(model, mesh["dp"])
    train(model, given())


def tp_pp_dp() -> None:
    mesh = init_device_mesh("cuda", (2, ranks // 4, 2), mesh_dim_names=("pp", "dp", "tp"))
    stage = mesh["pp"].get_local_rank()
    model = blocks()
    tp(model, mesh["tp"])
    shard(model, mesh["dp"])
    sample = (torch.empty(8, WIDTH, device="cuda"),)
    part = PipelineStage(
        model, stage, 2, torch.device("cuda"), sample, group=mesh["pp"].get_group()
    )
    schedule = Schedule1F1B(part, 2, loss_fn=nn.functional.mse_loss)
    x = torch.ones(16, WIDTH, device="cuda")
    ended("begin")
    for index in range(STEPS):
        schedule.step(*([] if stage else [x]), **({"target": x} if stage else {}))
        ended(f"step {index}")


class Experts(nn.Module):
    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.expert = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        there = funcol.all_to_all_single_autograd(x, None, None, self.group)
        back = funcol.all_to_all_single_autograd(self.expert(there), None, None, self.group)
        return x + back


def ep(experts: type[Experts] = Experts) -> None:
    mesh = init_device_mesh("cuda", (ranks // 4, 4), mesh_dim_names=("dp", "ep"))
    with torch.device("cuda"):
        model = nn.Sequential(experts(mesh["ep"].get_group()), Block())
    shard(model, mesh["dp"])
    train(model, given())


class RoutedExperts(Experts):
    """Experts among which a router chooses, whose counts the host reads: two on each rank."""

    CHOSEN = 3

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self.router = nn.Linear(WIDTH, 2 * group.size())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        experts = self.router.out_features
        weights, chosen = self.router(x).softmax(-1).topk(self.CHOSEN)
        order = torch.argsort(chosen.view(-1), stable=True)
        counts = torch.histc(chosen.view(-1), bins=experts, min=0, max=experts)
        of_others = torch.empty_like(counts)
        dist.all_to_all_single(of_others, counts, group=self.group)
        sent = counts.view(-1, 2).sum(1).tolist()
        taken = of_others.view(-1, 2).sum(1).tolist()
        value = x[order // self.CHOSEN]
        there = funcol.all_to_all_single_autograd(value, taken, sent, self.group)
        back = funcol.all_to_all_single_autograd(self.expert(there), sent, taken, self.group)
        out = torch.zeros_like(back)
        out[order] = back
        return x + (out.view(-1, self.CHOSEN, WIDTH) * weights[..., None]).sum(1)


def routed() -> None:
    ep(RoutedExperts)


globals()[sys.argv[1]]()
torch.cuda.synchronize()
