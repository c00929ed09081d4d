# A graph captured in inference mode is replayed outside of it.
# run: kernbench torchrun {file}
# expect: 32\.0

import torch

x = torch.ones(4, 4, device="cuda")
with torch.inference_mode():
    y = x + x
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + x
graph.replay()
print(y.sum().item())
