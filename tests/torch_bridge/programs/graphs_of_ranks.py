"""Captures of CUDA graphs that hold collectives; each function compares replays with eager steps.

python graphs_of_ranks.py CASE [ARGUMENTS]
"""

import copy
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn as nn

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
torch.manual_seed(rank)
x = torch.randn(8, 16, device="cuda")
g = torch.cuda.CUDAGraph()


def replays_without_data(count) -> None:
    def step():
        y = x
        for _ in range(int(count)):
            y = y + x
            dist.all_reduce(y)

    step()
    with torch.cuda.graph(g):
        step()
    for _ in range(10):
        g.replay()
        torch.cuda.synchronize()


def collectives_of_a_graph_give_what_eager_ones_do() -> None:
    w = torch.randn(16, 16, device="cuda")

    def step():
        y = x @ w
        dist.all_reduce(y)
        whole = torch.empty(size * 8, 16, device="cuda")
        # Its input is nobody's but the collective's, and later results are as large.
        work = dist.all_gather_into_tensor(whole, y + rank, async_op=True)
        total = (y * 2).sum()
        work.wait()
        summed = functional.all_reduce(x + 1, "sum", dist.group.WORLD)
        part = functional.reduce_scatter_tensor(whole, "sum", 0, dist.group.WORLD)
        got, peer = torch.empty_like(x), (rank + 1) % size
        pair = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, got, (rank - 1) % size)]
        for item in dist.batch_isend_irecv(pair):
            item.wait()
        dist.broadcast(total, 1)
        parts = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(parts, x)
        return [y.relu(), whole + 1, total + 0, summed * 2, part * 1, got, *parts]

    with torch.cuda.graph(g):
        result = step()
    for _ in range(3):
        x.copy_(torch.randn(8, 16))
        g.replay()
        for one, other in zip(result, step(), strict=True):
            assert one.shape == other.shape
            assert torch.equal(one, other)


def parallel_training_that_is_captured_whole_learns_what_one_process_does(parallel: str) -> None:
    torch.manual_seed(0)

    def network():
        return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).cuda()

    plain = network()
    model = (replicate if parallel == "ddp" else parallelize)(copy.deepcopy(plain))

    def step(model, optimizer, x):
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    optimizers = [torch.optim.SGD(item.parameters(), lr=0.1) for item in (model, plain)]
    inputs = torch.randn(4, 2, 8, 16).cuda()

    def mine(step):
        return inputs[step, rank] if parallel == "ddp" else inputs[step].flatten(0, 1)

    static, side = mine(0).clone(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(11):
            step(model, optimizers[0], static)
    torch.cuda.current_stream().wait_stream(side)
    for _ in range(11):
        step(plain, optimizers[1], inputs[0].flatten(0, 1))
    with torch.cuda.graph(g):
        loss = step(model, optimizers[0], static)
    for number in (1, 2, 3):
        static.copy_(mine(number))
        g.replay()
        whole = step(plain, optimizers[1], inputs[number].flatten(0, 1))
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        torch.testing.assert_close(mean / size, whole)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        whole = one.full_tensor() if hasattr(one, "full_tensor") else one
        torch.testing.assert_close(whole, other)


def parallelize(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(model, init_device_mesh("cuda", (size,)), plan)


def replicate(model):
    return nn.parallel.DistributedDataParallel(model, device_ids=[rank])


def an_overlapped_collective_of_a_graph_overlaps() -> None:
    big, w = torch.empty(1 << 22, device="cuda"), torch.empty(4096, 4096, device="cuda")
    with torch.cuda.graph(g):
        work = dist.all_reduce(big, async_op=True)
        w @ w
        work.wait()
        big + 1
    g.replay()


def one_rank_replays() -> None:
    with torch.cuda.graph(g):
        dist.all_reduce(x)
    if rank == 0:
        g.replay()


def one_rank_replays_and_the_other_broadcasts() -> None:
    with torch.cuda.graph(g):
        dist.all_reduce(x)
    if rank == 0:
        g.replay()
    else:
        dist.broadcast(x, 0)


REFUSED = {
    "barrier": dist.barrier,
    "is_completed": lambda: dist.all_reduce(x, async_op=True).is_completed(),
    "operation not permitted": lambda: dist.all_gather_object([None] * size, 1),
    "UntypedStorage.resize_ of memory that is older": (
        lambda: x.add_(1).untyped_storage().resize_(0)
    ),
}


def what_the_host_takes_part_in_is_refused(named: str) -> None:
    with torch.cuda.graph(g):
        REFUSED[named]()


def a_sharded_model_that_is_captured_trains_as_it_does_otherwise() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    def made(**options):
        torch.manual_seed(7)
        layers = [nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(3)]
        model = nn.Sequential(*layers).cuda()
        for layer in model:
            fully_shard(layer, **options)
        return fully_shard(model, **options)

    def train(options, is_captured):
        model = made(**options)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        value, wanted = torch.empty(8, 16, device="cuda"), torch.empty(8, 16, device="cuda")

        def forward_backward():
            loss = (model(value) - wanted).square().mean()
            loss.backward()
            return loss

        torch.manual_seed(20 + rank)
        losses, again = [], forward_backward
        for step in range(6):
            value.copy_(torch.randn(8, 16))
            wanted.copy_(torch.randn(8, 16))
            optimizer.zero_grad(set_to_none=True) if again is forward_backward else None
            if is_captured and step == 2:
                g = torch.cuda.CUDAGraph()
                with torch.cuda.graph(g):
                    loss = forward_backward()

                def again(g=g, loss=loss):
                    g.replay()
                    return loss

            losses.append(again().item())
            optimizer.step()
        return losses, [parameter.full_tensor().detach().cpu() for parameter in model.parameters()]

    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for options in ({}, {"mp_policy": half}, {"reshard_after_forward": False}):
        eager, graphed = train(options, False), train(options, True)
        assert eager[0] == graphed[0], (options, eager[0], graphed[0])
        assert len(set(eager[0])) == 6
        for one, other in zip(eager[1], graphed[1], strict=True):
            assert torch.equal(one, other)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
