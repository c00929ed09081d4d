"""Each kind of parallel training in torch.distributed, against one process that does all the work.

arguments: folder, cases. Every case takes two steps of SGD and compares losses and parameters.
"""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

folder = sys.argv[1]
WIDTH, BATCH, SEQUENCE = 16, 8, 8
dist.init_process_group("cpu:gloo,cuda:nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
device = torch.device("cuda", rank)
cases = {}


def case(function):
    cases[function.__name__] = function
    return function


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def built():
    torch.manual_seed(1)
    return nn.Sequential(MLP(), MLP()).to(device)


def batches():
    generator = torch.Generator().manual_seed(2)
    for _ in range(2):
        yield torch.randn(BATCH, SEQUENCE, WIDTH, generator=generator).to(device)


def loss_of(y):
    return y.square().mean()


def trained(model, step=None):
    """Take two steps; ``step`` does forward and backward and returns the loss of the rank."""
    # PyTorch does not take lists of tensors and DTensors together.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    losses: list = []
    for x in batches():
        if step is None:
            loss = loss_of(model(x))
            loss.backward()
        else:
            loss = step(model, x)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def mine(x):
    return x.chunk(size)[rank]


def averaged(loss):
    loss = loss.detach().clone()
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    return loss


def on_my_part(model, x):
    loss = loss_of(model(mine(x)))
    loss.backward()
    return averaged(loss)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def compare(losses, parameters):
    reference = built()
    torch.testing.assert_close(losses, trained(reference), rtol=1e-5, atol=1e-6)
    expected = dict(reference.named_parameters())
    assert len(parameters) == len(expected)
    for name, value in parameters.items():
        detach = whole(value).detach()
        torch.testing.assert_close(detach, expected[name].detach(), rtol=1e-5, atol=1e-6)


@case
def ddp():
    model = DistributedDataParallel(built(), bucket_cap_mb=0.01)
    compare(trained(model, on_my_part), dict(model.module.named_parameters()))


@case
def ddp_that_accumulates():
    model = DistributedDataParallel(built(), static_graph=False, find_unused_parameters=True)

    def step(model, x):
        first, second = mine(x).chunk(2)
        with model.no_sync():
            loss_of(model(first)).div(2).backward()
        loss = loss_of(model(second)) / 2
        loss.backward()
        with torch.no_grad():
            return averaged(loss + loss_of(model(first)) / 2)

    compare(trained(model, step), dict(model.module.named_parameters()))


@case
def zero_redundancy():
    model = DistributedDataParallel(built())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    losses: list = []
    for x in batches():
        losses.append(on_my_part(model, x))
        optimizer.step()
        optimizer.zero_grad()
    compare(torch.stack(losses), dict(model.module.named_parameters()))


@case
def fsdp1():
    model = built()
    for index, layer in enumerate(model):
        model[index] = FullyShardedDataParallel(layer, use_orig_params=True)
    model = FullyShardedDataParallel(model, use_orig_params=True)
    losses = trained(model, on_my_part)
    with FullyShardedDataParallel.summon_full_params(model):
        clones = {
            name.replace("_fsdp_wrapped_module.", ""): parameter.clone()
            for name, parameter in model.named_parameters()
        }
    compare(losses, clones)


@case
def fsdp2():
    model = built()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    compare(trained(model, on_my_part), dict(model.named_parameters()))


@case
def fsdp2_replicated_in_rows():
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = built()
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    model[0].set_modules_to_forward_prefetch([model[1]])
    compare(trained(model, on_my_part), dict(model.named_parameters()))


@case
def fsdp2_in_bfloat16():
    model = built()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mp_policy=policy)
    losses = trained(model, on_my_part)
    torch.testing.assert_close(losses.float(), trained(built()), rtol=2e-2, atol=0)
    assert next(model.parameters()).dtype is torch.float32


@case
def tensor_parallel():
    model = built()
    mesh = init_device_mesh("cuda", (size,))
    for layer in model:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(layer, mesh, plan)
    compare(trained(model), dict(model.named_parameters()))


@case
def sequence_parallel():
    model = built()
    mesh = init_device_mesh("cuda", (size,))
    for layer in model:
        plan = {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(layer, mesh, plan)
    parallelize_module(
        model,
        mesh,
        PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True
        ),
    )

    def step(model, x):
        # Of a part of the sequence; gradients are summed over the ranks.
        loss = loss_of(model(x))
        (loss / size).backward()
        return averaged(loss)

    compare(trained(model, step), dict(model.named_parameters()))


def pipelined(schedule_class):
    layers = [nn.Linear(WIDTH, WIDTH) for _ in everyone()]
    torch.manual_seed(4)
    for layer in layers:
        nn.init.normal_(layer.weight, std=0.3)
        nn.init.zeros_(layer.bias)
    reference = nn.Sequential(*copy.deepcopy(layers)).to(device)
    stage = PipelineStage(layers[rank].to(device), rank, size, device)
    schedule = schedule_class(stage, n_microbatches=4, loss_fn=lambda y, target: loss_of(y))
    x = torch.arange(BATCH * WIDTH, dtype=torch.float32).view(BATCH, WIDTH).div(64).to(device)
    losses: list = []
    if rank == 0:
        schedule.step(x)
    elif rank == size - 1:
        schedule.step(target=x, losses=losses)
    else:
        schedule.step()
    loss = loss_of(reference(x))
    loss.backward()
    if losses:
        torch.testing.assert_close(torch.stack(losses).mean(), loss)
    torch.testing.assert_close(layers[rank].weight.grad, reference[rank].weight.grad)


def everyone():
    return range(size)


@case
def pipeline_gpipe():
    pipelined(ScheduleGPipe)


@case
def pipeline_1f1b():
    pipelined(Schedule1F1B)


def on_my_rows(mesh):
    """Return a step on the batch's part of a row of the mesh."""
    group = mesh["dp"].get_group()

    def step(model, x):
        loss = loss_of(model(x.chunk(2)[dist.get_rank(group)]))
        loss.backward()
        loss = loss.detach().clone()
        dist.all_reduce(loss, dist.ReduceOp.AVG, group=group)
        return loss

    return step


def sharded_both_ways(mesh, **options):
    model = built()
    for layer in model:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(layer, mesh["tp"], plan)
        fully_shard(layer, mesh=mesh["dp"], **options)
    fully_shard(model, mesh=mesh["dp"], **options)
    return model


@case
def fsdp2_of_tensor_parallel():
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    model = sharded_both_ways(mesh)
    compare(trained(model, on_my_rows(mesh)), dict(model.named_parameters()))


@case
def fsdp2_of_tensor_parallel_in_mixed_precision():
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded_both_ways(mesh, mp_policy=policy)
    step = on_my_rows(mesh)

    def autocast_step(model, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return step(model, x)

    losses = trained(model, autocast_step)
    torch.testing.assert_close(losses.float(), trained(built()), rtol=2e-2, atol=0)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert whole(norm).item() == 0


@case
def pipeline_of_replicas():
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "pp"))
    stage_number, replica = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    reference = built()
    module = DistributedDataParallel(built()[stage_number], process_group=mesh["dp"].get_group())
    stage = PipelineStage(module, stage_number, 2, device, group=mesh["pp"].get_group())
    schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=lambda y, target: loss_of(y))
    (x, _) = batches()
    losses: list = []
    part = x.chunk(2)[replica]
    schedule.step(*([part] if stage_number == 0 else []), target=part, losses=losses)
    loss = loss_of(reference(x))
    loss.backward()
    if stage_number == 1:
        mine = torch.stack(losses).mean()
        dist.all_reduce(mine, dist.ReduceOp.AVG, group=mesh["dp"].get_group())
        torch.testing.assert_close(mine, loss.detach(), rtol=1e-5, atol=1e-6)
    for parameter, expected in zip(
        module.parameters(), reference[stage_number].parameters(), strict=True
    ):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-5, atol=1e-6)


@case
def activation_checkpoints():
    for reentrant in (False, True):
        model = built()

        def step(model, x, reentrant=reentrant):
            x.requires_grad_()
            for layer in model:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            loss = loss_of(x)
            loss.backward()
            return loss

        compare(trained(model, step), dict(model.named_parameters()))


@case
def mixed_precision():
    model = DistributedDataParallel(built())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    losses: list = []
    for x in batches():
        with torch.autocast("cuda", dtype=torch.float16):
            y = model(mine(x))
            hidden = model.module[0].up(mine(x))
            assert hidden.dtype is torch.float16
            assert hidden.device == device
            loss = loss_of(y.float())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(averaged(loss))
    torch.testing.assert_close(torch.stack(losses), trained(built()), rtol=2e-2, atol=0)
    assert scaler.get_scale() == 1024.0
    # An overflow skips the step and halves the scale.
    before = [parameter.clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float("inf"))
    scaler.scale(torch.ones((), device=device))
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512.0
    assert all(map(torch.equal, before, model.parameters()))


@case
def distributed_checkpoints():
    model = built()
    fully_shard(model)
    trained(model, on_my_part)
    saved = {name: value.full_tensor().clone() for name, value in model.state_dict().items()}
    dcp.save({"model": model.state_dict()}, checkpoint_id=f"{folder}/sync")
    future = dcp.async_save({"model": model.state_dict()}, checkpoint_id=f"{folder}/async")
    future.result()
    for name in ("sync", "async"):
        other = built()
        fully_shard(other)
        state = {"model": other.state_dict()}
        dcp.load(state, checkpoint_id=f"{folder}/{name}")
        other.load_state_dict(state["model"])
        for key, value in other.state_dict().items():
            assert torch.equal(value.full_tensor(), saved[key])
    if rank == 0:
        assert len(list(Path(folder, "async").glob("*.distcp"))) == size


@case
def distributed_tensors():
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("a", "b"))
    a = torch.arange(64.0).view(8, 8).to(device)
    b = a.T.contiguous() + 1
    x = distribute_tensor(a, mesh, [Shard(0), Replicate()])
    y = distribute_tensor(b, mesh, [Replicate(), Shard(1)])
    assert x.to_local().shape == (4, 8)
    assert x.device == device
    product = x @ y
    assert product.placements == (Shard(0), Shard(1))
    assert torch.equal(product.full_tensor(), a @ b)
    assert torch.equal(product.sum().full_tensor(), (a @ b).sum())
    again = product.redistribute(mesh, [Shard(1), Shard(0)])
    assert torch.equal(again.full_tensor(), a @ b)
    torch.manual_seed(5)
    noise = torch.distributed.tensor.randn(8, 8, device_mesh=mesh, placements=[Shard(0), Shard(1)])
    parts = [torch.empty_like(noise.to_local()) for _ in range(size)]
    dist.all_gather(parts, noise.to_local())
    assert len({tuple(part.flatten().tolist()) for part in parts}) == size


for name in sys.argv[2:] or cases:
    cases[name]()
dist.destroy_process_group()
