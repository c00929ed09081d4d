"""What a program does with tensors that a collective uses; BACKEND is nccl or gloo.

python in_use.py CASE BACKEND
"""

import gc
import sys
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from kernbench.errors import UsageError

BACKEND = sys.argv[2]
dist.init_process_group(BACKEND)
rank = dist.get_rank()
if BACKEND == "nccl":
    torch.cuda.set_device(rank)
device = torch.device("cuda", rank) if BACKEND == "nccl" else torch.device("cpu")
x, out = torch.ones(4, device=device), torch.zeros(8, device=device)


def begin():
    return dist.all_gather_into_tensor(out, x, async_op=True)


def add_in_place(tensor):
    tensor += 1


TOUCHES = [
    (lambda: out + 1, "aten.add reads"),
    (lambda: out.sum().item(), "aten.sum reads"),
    (lambda: out[4:].mul_(2), "aten.mul_ writes"),
    (lambda: x.add_(1), "aten.add_ writes"),
    (lambda: torch._foreach_add_([x], 1), "aten._foreach_add_ writes"),
    (lambda: torch.add(torch.ones_like(x), 1, out=x), "aten.add writes"),
    (lambda: add_in_place(out.view(2, 4)[:, 3:]), "aten.add_ writes"),
]


def touching_it_is_refused_with_both_lines() -> None:
    for number, (touch, what) in enumerate(TOUCHES, 1):
        work = begin()
        with pytest.raises(UsageError) as raised:
            touch()
        for word in (
            what,
            f"in use by all_gather #{number} on group world",
            f"called at in_use.py:{begin.__code__.co_firstlineno + 1}; call wait()",
        ):
            assert word in str(raised.value), raised.value
        work.wait()
        assert out.tolist() == [1.0] * 8
        assert x.tolist() == [1.0] * 4


def touching_it_ends_the_run() -> None:
    work = begin()
    x.add_(1)
    work.wait()


def what_does_not_conflict_is_fine() -> None:
    work = begin()
    result = x + 1  # it only reads x as well
    view = out[2:]  # no data is touched
    other = torch.empty_like(out)
    work.wait()
    out.add_(1)
    x.zero_()
    assert out.tolist() == [2.0] * 8
    assert view.tolist() == [2.0] * 6
    assert result.tolist() == [2.0] * 4
    assert other.shape == out.shape


def other_parts_of_a_buffer_are_the_programs() -> None:
    def coalesced(whole, part):
        with _coalescing_manager(dist.group.WORLD, async_ops=True) as work:
            dist.reduce_scatter_tensor(part, whole)
        return work

    calls = {
        "all_reduce": lambda whole, part: dist.all_reduce(whole, async_op=True),
        "all_gather": lambda whole, part: dist.all_gather_into_tensor(whole, part, async_op=True),
        "reduce_scatter": lambda whole, part: dist.reduce_scatter_tensor(
            part, whole, async_op=True
        ),
        "coalesced": coalesced,
    }
    first_of = {"all_reduce": 3, "all_gather": 1 + rank, "reduce_scatter": 3, "coalesced": 3}
    for kind, call in calls.items():
        if kind == "coalesced" and device.type == "cpu":
            continue
        buffer = torch.zeros(64, device=device)
        whole, other = buffer[:32], buffer[32:]
        # The use is the first half of a row; columns of the second half are between its bytes.
        rows = buffer.view(2, 32)
        whole += rank + 1
        shard = whole.chunk(2)[rank]
        work = call(whole, shard)
        other += 1
        torch.add(other, 1, out=other)
        buffer.view(-1)[40:].mul_(2)
        rows[1:].add_(0)
        assert other[0].item() == 2
        assert other[9].item() == 4
        work.wait()
        assert shard[0].item() == first_of[kind], (kind, shard)
        # Between the bytes that the collective has, and beside them.
        columns = torch.zeros(4, 16, device=device)
        work = dist.all_reduce(columns[1, :8], async_op=True)
        columns[:, 8:] += 1
        columns.view(2, 2, 16)[:, 0, :8] += 1
        work.wait()
        assert columns[1].tolist() == [0] * 8 + [1] * 8


def tensors_of_a_collective_that_has_ended_go_with_their_last_reference() -> None:
    gc.disable()
    x, y = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
    x_is_there = weakref.ref(x)
    dist.all_reduce(x)
    del x
    # The latest call of a group is remembered.
    dist.all_reduce(y)
    torch.cuda.synchronize()
    dist.barrier()
    assert x_is_there() is None


def sent_in_a_batch(tensor):
    end = dist.isend if rank == 0 else dist.irecv
    return dist.batch_isend_irecv([dist.P2POp(end, tensor, 1 - rank)])


def last_alone(begin, tensors):
    [begin(tensor) for tensor in tensors][-1].wait()


def blocking_last(begin, tensors):
    for tensor in tensors[:-1]:
        begin(tensor)
    dist.all_reduce(tensors[-1])


def whole_device(begin, tensors):
    for tensor in tensors:
        begin(tensor)
    torch.cuda.synchronize()


def batch_after_them(begin, tensors):
    for tensor in tensors[:-1]:
        begin(tensor)
    # Rank 1 gets what rank 0 has, the sum of two.
    dist.all_reduce(tensors[-1])
    for work in sent_in_a_batch(tensors[-1]):
        work.wait()


def after_barrier(begin, tensors):
    for tensor in tensors:
        begin(tensor)
    dist.barrier()


WAITS = [last_alone, blocking_last, whole_device, batch_after_them, after_barrier]


def what_nccl_runs_in_order_is_waited_for_with_the_last() -> None:
    def begin(tensor):
        return dist.all_reduce(tensor, async_op=True)

    for wait in WAITS:
        tensors = [torch.full((1 << 16,), rank + 1.0, device="cuda") for _ in range(3)]
        wait(begin, tensors)
        assert [(tensor * 2)[0].item() for tensor in tensors] == [6.0] * 3, wait
    # What was waited for is waited for again, in any order, and later calls are on their own.
    works = [begin(tensor) for tensor in tensors]
    for work in (works[2], works[0], works[1]):
        work.wait()
    assert tensors[0][0].item() == 6.0
    # Memory of what nobody has waited for by itself is free again.
    seen = weakref.ref(tensors[0])
    del works, tensors
    assert seen() is None


def another_group_runs_on_a_stream_of_its_own() -> None:
    others = dist.new_group([0, 1])
    tensors = [torch.full((1 << 16,), rank + 1.0, device="cuda") for _ in range(3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors[:2]]
    dist.all_reduce(tensors[2], group=others)
    with pytest.raises(UsageError, match="in use by all_reduce #1 on group world"):
        tensors[0] * 1
    works[0].wait()
    assert (tensors[0] * 1)[0].item() == 3.0
    with pytest.raises(UsageError, match="in use by all_reduce #2 on group world"):
        tensors[1] * 1
    torch.cuda.current_stream().synchronize()
    with pytest.raises(UsageError, match="in use by all_reduce #2 on group world"):
        tensors[1] * 1
    works[1].wait()


def gloo_runs_them_in_any_order() -> None:
    tensors = [torch.ones(4) for _ in range(2)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    works[1].wait()
    with pytest.raises(UsageError, match="in use by all_reduce #1 on group world"):
        tensors[0] * 1
    works[0].wait()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
