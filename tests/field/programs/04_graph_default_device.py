# A graph is captured under a default device, as nano-vllm does.
# run: kernbench torchrun {file}
# expect: 8\.0

import torch

torch.set_default_device("cuda")
x = torch.ones(4, 4)
y = x + x
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + x
graph.replay()
print(y.sum(1)[0].item())
