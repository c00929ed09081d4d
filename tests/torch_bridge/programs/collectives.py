"""Each way of calling a collective, against what it must give.

arguments: device type (cuda or cpu), cases (all that the device's backend has, if none is named).
All numbers are small integers, so that every order of adding them is exact.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as autograd_collectives
from torch.distributed import ReduceOp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

kind = sys.argv[1]
dist.init_process_group("nccl" if kind == "cuda" else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()
if kind == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
everyone = range(size)
cases = {}


def case(function):
    cases[function.__name__] = function
    return function


def nccl_only(function):
    """Not what real gloo has."""
    return case(function) if kind == "cuda" else function


def filled(value, *shape, dtype=torch.float32):
    return torch.full(shape or (3,), value, device=device, dtype=dtype)


def check(result, expected):
    assert result.device.type == kind
    assert result.tolist() == torch.as_tensor(expected).expand(result.shape).tolist(), (
        rank,
        result,
        expected,
    )


@case
def all_reduce_with_every_op():
    for op, expected in (
        (ReduceOp.SUM, sum(item + 1 for item in everyone)),
        (ReduceOp.PRODUCT, 24),
        (ReduceOp.MIN, 1),
        (ReduceOp.MAX, size),
    ):
        for dtype in (torch.float32, torch.int64, torch.bfloat16):
            x = filled(rank + 1, dtype=dtype)
            dist.all_reduce(x, op)
            check(x, torch.tensor(expected, dtype=dtype))
    if dist.get_backend() == "gloo":
        x = filled(1 << rank, dtype=torch.int32)
        dist.all_reduce(x, ReduceOp.BOR)
        check(x, (1 << size) - 1)


@nccl_only
def numbers_of_eight_bits():
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        x = filled(2.0**rank).to(dtype)
        dist.all_reduce(x)
        check(x.float(), torch.tensor(2.0**size - 1).to(dtype).float())


@nccl_only
def averages():
    x = filled(2.0 * rank)
    dist.all_reduce(x, ReduceOp.AVG)
    check(x, float(size - 1))


@case
def broadcast_and_reduce():
    x = filled(float(rank))
    dist.broadcast(x, src=2)
    check(x, 2.0)
    x = filled(float(rank))
    dist.reduce(x, dst=1)
    if rank == 1:
        check(x, float(sum(everyone)))


@case
def gathers():
    parts = [filled(-1.0) for _ in everyone]
    dist.all_gather(parts, filled(float(rank)))
    for index, part in enumerate(parts):
        check(part, float(index))
    whole = filled(-1.0, size * 3)
    dist.all_gather_into_tensor(whole, filled(float(rank)))
    check(whole.view(size, 3)[:, 0], [float(item) for item in everyone])
    parts = [filled(-1.0) for _ in everyone] if rank == 1 else None  # type: ignore[assignment]
    dist.gather(filled(float(rank)), parts, dst=1)
    for item, part in enumerate(parts or []):
        check(part, float(item))


@nccl_only
def gathers_of_uneven_parts():
    parts = [filled(-1.0, item + 1) for item in everyone]
    dist.all_gather(parts, filled(float(rank), rank + 1))
    for index, part in enumerate(parts):
        check(part, float(index))


@case
def scatters():
    out = filled(-1.0)
    dist.scatter(out, [filled(float(item)) for item in everyone] if rank == 3 else None, src=3)
    check(out, float(rank))
    dist.reduce_scatter(out, [filled(float(item + rank)) for item in everyone])
    check(out, float(size * rank + sum(everyone)))
    whole = torch.cat([filled(float(item * rank)) for item in everyone])
    dist.reduce_scatter_tensor(out, whole)
    check(out, float(rank * sum(everyone)))


@case
def exchanges():
    sent = [item + rank + 1 for item in everyone]
    whole = torch.cat([filled(float(10 * rank + index), n) for index, n in enumerate(sent)])
    out = filled(-1.0, sum(sent))
    dist.all_to_all_single(out, whole, sent, sent)
    check(out, [float(10 * index + rank) for index, n in enumerate(sent) for _ in range(n)])
    out = filled(-1.0, size)
    dist.all_to_all_single(out, torch.stack([filled(float(rank), 1)[0]] * size))
    check(out, [float(item) for item in everyone])


@nccl_only
def exchanges_of_lists():
    outputs = [filled(-1.0, 2) for _ in everyone]
    dist.all_to_all(outputs, [filled(float(10 * rank + item), 2) for item in everyone])
    for index, out in enumerate(outputs):
        check(out, float(10 * index + rank))


@case
def points():
    x = filled(float(rank))
    if rank % 2:
        dist.recv(x, rank - 1, tag=3)
        check(x, float(rank - 1))
        dist.isend(x, rank - 1).wait()
    else:
        dist.send(x, rank + 1, tag=3)
        x.fill_(-1.0)
        work = dist.irecv(x, rank + 1)
        work.wait()
        check(x, float(rank))
    incoming = filled(-1.0)
    operations = [
        dist.P2POp(dist.isend, filled(float(rank)), (rank + 1) % size),
        dist.P2POp(dist.irecv, incoming, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    check(incoming, float((rank - 1) % size))
    # As many elements, in other shapes.
    x = filled(float(rank), 1) if rank % 2 else filled(float(rank)).sum() / 3
    (dist.recv if rank % 2 else dist.send)(x, rank - 1 if rank % 2 else rank + 1)
    check(x, float(rank // 2 * 2))


@case
def objects():
    result = [None] * size
    dist.all_gather_object(result, {"rank": rank, "text": "x" * rank})
    assert result == [{"rank": item, "text": "x" * item} for item in everyone]
    result = [None] * size if rank == 1 else None  # type: ignore[assignment]
    dist.gather_object((rank, "a"), result, dst=1)
    assert result is None or result == [(item, "a") for item in everyone]
    values = [{"k": 1}, "two"] if rank == 0 else [None, None]
    dist.broadcast_object_list(values, src=0)
    assert values == [{"k": 1}, "two"]
    out = [None]
    dist.scatter_object_list(out, [f"for {item}" for item in everyone] if rank == 2 else None, 2)
    assert out == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list(["sent"], dst=3)
    elif rank == 3:
        out = [None]
        dist.recv_object_list(out, src=0)
        assert out == ["sent"]


@case
def groups():
    half = [0, 1] if rank < 2 else [2, 3]
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    x = filled(float(rank + 1))
    dist.all_reduce(x, group=groups[rank // 2])
    check(x, float(sum(item + 1 for item in half)))
    mine, _ = dist.new_subgroups(2)
    assert dist.get_process_group_ranks(mine) == half
    assert dist.get_rank(mine) == rank % 2
    x = filled(float(rank))
    dist.broadcast(x, src=half[1], group=mine)
    check(x, float(half[1]))
    other = dist.new_group([3, 1])
    if rank in (1, 3):
        x = filled(float(rank))
        dist.broadcast(x, group=other, group_src=0)
        check(x, float(dist.get_process_group_ranks(other)[0]))
    dist.destroy_process_group(other)
    dist.barrier()


@case
def calls_that_are_waited_for_later():
    tensors = [filled(float(rank + index)) for index in range(4)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    later = works[-1].get_future().then(lambda done: done.value())
    for work in reversed(works):
        work.wait()
    later.wait()
    assert all(work.is_completed() for work in works) or kind == "cuda"
    for index, x in enumerate(tensors):
        check(x, float(sum(everyone) + size * index))
    dist.barrier(async_op=True).wait()


@nccl_only
def calls_in_one():
    xs = [filled(float(rank + index), index + 1) for index in range(3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    for index, x in enumerate(xs):
        check(x, float(sum(everyone) + size * index))
    wholes = [filled(-1.0, size * (item + 1)) for item in range(2)]
    with dist._coalescing_manager():
        for item, whole in enumerate(wholes):
            dist.all_gather_into_tensor(whole, filled(float(rank), item + 1))
    check(wholes[1].view(size, 2)[:, 0], [float(entry) for entry in everyone])
    outs = [filled(-1.0, entry + 1) for entry in range(2)]
    with dist._coalescing_manager():
        for entry, out in enumerate(outs):
            dist.reduce_scatter_tensor(out, filled(float(rank), size * (entry + 1)))
    check(outs[1], float(sum(everyone)))
    xs = [filled(float(rank)), filled(1.0, 5)]
    dist.all_reduce_coalesced(xs)
    check(xs[0], float(sum(everyone)))
    check(xs[1], float(size))


@case
def functional():
    x = filled(float(rank), size, 2)
    group = dist.group.WORLD
    total = float(sum(everyone))
    check(funcol.all_reduce(x, "sum", group) + 0, total)
    check((funcol.all_gather_tensor(x, 0, group) + 0)[::size, 0], [float(r) for r in everyone])
    check(funcol.all_gather_tensor(x, 1, group)[0], [float(r) for r in everyone for _ in "ab"])
    check(funcol.reduce_scatter_tensor(x, "sum", 0, group) + 0, total)
    check(funcol.broadcast(x, 1, group) + 0, 1.0)
    check((funcol.all_to_all_single(x, None, None, group) + 0)[:, 0], [float(r) for r in everyone])
    for y in funcol.all_reduce_coalesced([x, x + 1], "sum", group)[1:]:
        check(y + 0, total + size)
    assert x[0, 0].item() == rank


@case
def functional_with_gradients():
    x = filled(float(rank), size, 2).requires_grad_()
    y = funcol.all_gather_tensor_autograd(x, 0, dist.group.WORLD)
    (y * (rank + 1)).sum().backward()
    check(x.grad, float(sum(item + 1 for item in everyone)))
    x = filled(float(rank), 2).requires_grad_()
    y = autograd_collectives.all_reduce(x)
    check(y.detach(), float(sum(everyone)))
    (y * (rank + 1)).sum().backward()
    check(x.grad, float(sum(item + 1 for item in everyone)))
    x = filled(float(rank), 2).requires_grad_()
    torch.stack(autograd_collectives.all_gather(x)).sum().backward()
    check(x.grad, float(size))


@case
def meshes():
    mesh = init_device_mesh(kind, (2, 2), mesh_dim_names=("a", "b"))
    assert list(mesh.get_coordinate()) == [rank // 2, rank % 2]
    x = filled(float(rank))
    dist.all_reduce(x, group=mesh["b"].get_group())
    check(x, float(4 * (rank // 2) + 1))
    flat = mesh["a", "b"]._flatten("all")
    x = filled(float(rank))
    dist.all_reduce(x, group=flat.get_group())
    check(x, float(sum(everyone)))
    assert mesh["a"].get_local_rank() == rank // 2


@case
def unequal_shards_of_two_dims():
    """What one rank keeps of how its shards move is none of others with the same mesh."""
    mesh = init_device_mesh(kind, (2, 2))
    whole = torch.arange(42.0).reshape(7, 6)
    layouts = [(Shard(a), Shard(b)) for a in (0, 1) for b in (0, 1)]
    layouts += [(Replicate(), Shard(0)), (Shard(1), Replicate()), (Replicate(), Replicate())]
    for source in layouts:
        tensor = distribute_tensor(whole.to(device), mesh, source)
        for target in layouts:
            part = whole
            for place, placement in zip(mesh.get_coordinate(), target, strict=True):
                if isinstance(placement, Shard):
                    parts = part.chunk(2, placement.dim)
                    part = parts[place] if place < len(parts) else part.narrow(placement.dim, 0, 0)
            check(tensor.redistribute(mesh, target).to_local(), part)
        check((tensor @ tensor.t()).full_tensor(), whole @ whole.t())


@case
def stores():
    ports = [0]
    if rank == 0:
        master = dist.TCPStore("localhost", 0, size, True, wait_for_workers=False)
        ports = [master.port]
    dist.broadcast_object_list(ports)
    store = master if rank == 0 else dist.TCPStore("localhost", ports[0], size, False)
    assert isinstance(store, dist.TCPStore)
    assert store.host == "localhost"
    if rank:
        store.queue_push("work", str(rank))
    else:
        assert sorted(store.queue_pop("work") for _ in range(size - 1)) == [b"1", b"2", b"3"]
        assert (store.queue_len("work"), store.check(["work"])) == (0, False)
        try:
            store.queue_pop("work", False)
        except dist.QueueEmptyError:
            store.set("empty", "yes")
    assert store.get("empty") == b"yes"
    dist.barrier()


@nccl_only
def groups_of_two_back_ends():
    for back_end in ("cuda:nccl,cpu:gloo", "cpu:gloo,cuda:nccl"):
        group = dist.new_group(backend=back_end)
        assert {device.type for device in group._device_types} == {"cpu", "cuda"}
    assert [device.type for device in dist.group.WORLD._device_types] == ["cuda"]


for name in sys.argv[2:] or cases:
    cases[name]()
dist.destroy_process_group()
