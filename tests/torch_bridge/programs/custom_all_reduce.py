"""An engine's own all-reduce, by handles that its ranks exchange, beside NCCL's.

A second argument: the run has no data, so that there is nothing to compare.
"""

import sys

import torch
import torch.distributed as dist

sys.path.insert(0, sys.argv[1])
import engine_of_peers._C  # noqa: F401

OPS = torch.ops._C_custom_ar
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
host = dist.new_group(backend="gloo")


def holds(tensor, value):
    assert sys.argv[2:] or (tensor == value).all()


def shared(size):
    pointer, handle = OPS.allocate_shared_buffer_and_handle(size)
    handles = [None] * world
    dist.all_gather_object(handles, handle, group=host)
    return [
        pointer if index == rank else OPS.open_mem_handle(handle)
        for index, handle in enumerate(handles)
    ]


signals, buffers = shared(OPS.meta_size() + 8192), shared(1 << 20)
assert signals[rank] != buffers[rank]
reducer = OPS.init_custom_ar(signals, torch.empty(64, dtype=torch.uint8, device="cuda"), rank, True)
OPS.register_buffer(reducer, buffers)
x = torch.full((4, 512), float(rank + 1), device="cuda", dtype=torch.bfloat16)
out = torch.empty_like(x)
OPS.all_reduce(reducer, x, out, buffers[rank], 1 << 20)
holds(out, world * (world + 1) / 2)
holds(x, rank + 1)
large = torch.ones(1 << 19, device="cuda", dtype=torch.bfloat16)
summed = torch.empty_like(large)
OPS.all_reduce(reducer, large, summed, buffers[rank], 1 << 20)
holds(summed, world)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    OPS.all_reduce(reducer, x, out, 0, 0)
OPS.register_graph_buffers(
    reducer, *([item] * world for item in OPS.get_graph_buffer_ipc_meta(reducer))
)
x.fill_(2.0)
graph.replay()
holds(out, 2 * world)
dist.all_reduce(x)
OPS.dispose(reducer)
