"""Broken programs of several ranks, and some that only look so.

python mistakes.py CASE [ARGUMENTS]
"""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
x = torch.full((4,), float(rank), device="cuda")


def different_kinds() -> None:
    dist.all_reduce(x) if rank else dist.all_gather([x.clone() for _ in range(3)], x)


def different_shapes() -> None:
    dist.all_reduce(x[: 4 - rank])


def different_dtypes() -> None:
    dist.all_reduce(x.half() if rank == 2 else x)


def different_reductions() -> None:
    dist.all_reduce(x, op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)


def different_roots() -> None:
    dist.broadcast(x, src=rank % 2)


def a_rank_is_missing() -> None:
    if rank != 2:
        dist.all_reduce(x)


def ranks_wait_late() -> None:
    begun_ns = time.perf_counter_ns()
    if rank != 2:
        for _ in range(50):
            x.add_(1)
        print("host", time.perf_counter_ns() - begun_ns)
        dist.all_reduce(x)


def groups_in_another_order() -> None:
    a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
    if rank < 2:
        for group in (a, b) if rank == 0 else (b, a):
            dist.all_reduce(x, group=group)


def both_receive() -> None:
    if rank < 2:
        dist.recv(x, 1 - rank)


def both_send() -> None:
    if rank < 2:
        dist.send(x, 1 - rank)
        dist.recv(x, 1 - rank)


def a_key_that_never_comes() -> None:
    if rank == 0:
        dist.distributed_c10d._get_default_store().wait(["never"])


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        dist.all_reduce(grad.contiguous())
        return grad


def inside_backward() -> None:
    p = torch.ones(4, device="cuda", requires_grad=True)
    (Sum.apply(p * 2) if rank != 1 else p * 2).sum().backward()


def one_raises() -> None:
    if rank == 2:
        raise ValueError("bad batch")
    dist.all_reduce(x)


def one_exits(status: str) -> None:
    if rank == 1:
        sys.exit(int(status))
    dist.barrier()


def one_leaves_at_once() -> None:
    if rank == 1:
        os._exit(3)
    dist.barrier()


def one_forks() -> None:
    if rank == 1:
        os.fork()
    dist.barrier()


def one_is_interrupted() -> None:
    if rank == 1:
        raise KeyboardInterrupt
    dist.all_reduce(x)


def devices_beyond_the_machine() -> None:
    torch.cuda.set_device(rank + 2)
    dist.barrier()


def a_device_beyond_the_machine() -> None:
    torch.cuda.set_device(4)


def a_tensor_beyond_the_machine() -> None:
    torch.ones(1, device="cuda:4")


def tensors_in_different_places() -> None:
    x + torch.ones(4)


def groups_of_other_ranks() -> None:
    dist.all_reduce(x, group=dist.new_group([rank % 2, 2] if rank < 2 else [0, 2]))


def a_reduction_on_the_host() -> None:
    dist.all_reduce(x.cpu())


def a_reduction_of_a_transposed_tensor() -> None:
    dist.all_reduce(torch.ones(2, 4, device="cuda").t())


def layouts_that_nccl_takes() -> None:
    image = torch.ones(2, 3, 4, 5, device="cuda").to(memory_format=torch.channels_last)
    dist.all_reduce(image)
    assert image.unique().tolist() == [3]
    ts = [torch.empty(2, 4, device="cuda").t() for _ in range(3)]
    dist.all_gather(ts, torch.full((4, 2), float(rank), device="cuda"))
    assert [item.unique().tolist() for item in ts] == [[0], [1], [2]]
    sent = [torch.full((2, 4), float(rank + 3 * i), device="cuda").t() for i in range(3)]
    dist.all_to_all(ts, sent)
    assert [item.unique().tolist() for item in ts] == [[i + 3 * rank] for i in range(3)]

    if rank < 2:
        message = torch.arange(8.0, device="cuda").view(2, 4).t() * (rank == 0)
        dist.send(message, 1) if rank == 0 else dist.recv(message, 0)
        assert message.tolist() == torch.arange(8.0).view(2, 4).t().tolist()


def a_message_with_gaps(side: str) -> None:
    gaps, whole = torch.ones(4, 4, device="cuda")[:, ::2], torch.ones(4, 2, device="cuda")
    if rank == 0:
        dist.send(gaps if side == "send" else whole, 1)
    elif rank == 1:
        dist.recv(gaps if side == "recv" else whole, 0)


def a_message_of_another_layout() -> None:
    if rank == 0:
        dist.send(torch.ones(2, 4, device="cuda").t(), 1)
    elif rank == 1:
        dist.recv(torch.ones(4, 2, device="cuda"), 0)


def a_message_of_the_host() -> None:
    dist.send(x.cpu(), (rank + 1) % 3)


def a_message_of_any_rank() -> None:
    dist.recv(x)


def a_backend_for_each_place_takes_tensors_of_both() -> None:
    for backend in ("cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo"):
        group = dist.new_group(backend=backend)
        for y in (torch.ones(2), torch.ones(2, device="cuda")):
            dist.all_reduce(y, group=group)
            assert y.tolist() == [3, 3]


def what_ddp_makes_itself_is_no_tensor_of_the_host() -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda())
    for _ in range(2):
        model(x).sum().backward()
    assert torch.allclose(model.module.weight.grad, torch.full((4, 4), 2.0, device="cuda"))


def first() -> None:
    dist.all_reduce(x)


def second() -> None:
    dist.all_reduce(x, dist.ReduceOp.SUM)


def equal_calls_in_opposite_order() -> None:
    for _ in range(3):
        for call in (first, second) if rank < 2 else (second, first):
            call()


def equal_calls_swapped_between_branches() -> None:
    y = x + 1
    if rank == 0:
        dist.all_reduce(x)
        dist.all_reduce(y)
    else:
        dist.all_reduce(y)
        dist.all_reduce(x)


def calls_from_different_lines_in_one_order() -> None:
    for _ in range(3):
        if rank == 0:
            dist.all_reduce(x)
            dist.broadcast(x, 0)
        else:
            dist.all_reduce(x)
            dist.broadcast(x, 0)


def compiling_is_left_out() -> None:
    double = torch.compile(lambda x: x * 2)

    @torch.compile(mode="max-autotune")
    def half(x):
        return x / 2

    layer = torch.nn.Linear(4, 4).cuda()
    layer.compile()
    assert half(double(x)).equal(x)
    assert layer(x).shape == x.shape


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
