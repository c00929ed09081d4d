"""A captured graph with a branch, replayed."""

import torch

x, side = torch.randn(256, 256, device="cuda"), torch.cuda.Stream()
x @ x
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x @ x
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        z = y.relu()
    w = y + 1
    torch.cuda.current_stream().wait_stream(side)
    v = z + w
for _ in range(3):
    graph.replay()
v.sum().item()
