"""A program whose default device is a simulated one: what the bridge makes for itself is not."""

import copy
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

rank, has_data = int(os.environ["RANK"]), sys.argv[1] == "data"
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.set_default_device("cuda")
torch.manual_seed(0)
x = torch.ones(4, 8)
assert x.get_device() == rank

model = torch.nn.Linear(8, 8)
parallel = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(parallel.parameters())
parallel(F.dropout(x)).sum().backward()
optimizer.step()

# Graphs, captured under inference mode or not, replayed under it or not.
graph = torch.cuda.CUDAGraph()
with torch.inference_mode():
    y = model(x)
    with torch.cuda.graph(graph):
        y = model(x)
        z = torch.zeros(3) + 1
        F.dropout(y)
graph.replay()
with torch.inference_mode():
    graph.replay()
assert z.is_inference()
if has_data:
    assert torch.equal(y, model(x))
    assert z.tolist() == [1] * 3
other, w = torch.cuda.CUDAGraph(), torch.zeros(3)
with torch.cuda.graph(other):
    dist.all_reduce(w)
    v = w + torch.ones(3)
with torch.inference_mode():
    w.fill_(1)
    other.replay()
w.fill_(2)
other.replay()
assert not has_data or v.tolist() == [5] * 3

dist.all_reduce(x, async_op=True).wait()
result = [None, None]
dist.all_gather_object(result, {"rank": rank})
assert not has_data or result == [{"rank": 0}, {"rank": 1}]
torch.cuda.seed()
torch.rand(3, generator=torch.Generator("cuda"))
assert torch.get_rng_state().device.type == torch.cuda.get_rng_state().device.type == "cpu"
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    x = x + x
torch.cuda.current_stream().wait_stream(side)
repr(x)
query = torch.randn(2, 2, 16, 8)
F.scaled_dot_product_attention(query, query, query, is_causal=True)
mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cuda")
flex_attention(query, query, query, block_mask=mask, score_mod=lambda s, b, h, i, j: s + (i - j))
torch.save(model.state_dict(), f"{sys.argv[2]}/{rank}.pt")
assert torch.load(f"{sys.argv[2]}/{rank}.pt")["weight"].is_cuda
assert copy.deepcopy(model).weight.is_cuda
with torch.autocast("cuda", torch.bfloat16):
    assert model(x).dtype is torch.bfloat16
assert torch.stack([x, x])[torch.tensor([0])][..., 0].is_cuda
assert torch.tensor([1, 2]).tolist() == [1, 2]
assert torch.ones(3, device="cpu").device.type == "cpu"
torch.cuda.FloatTensor([3.0])
