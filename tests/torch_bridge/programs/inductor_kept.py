"""Compile one function, and say whether its graph was kept on disk; the argument scales it."""

import sys

import torch
from torch._dynamo.utils import counters

factor = int(sys.argv[1])
x = torch.arange(40.0)
made = torch.compile(lambda x: torch.softmax(x * factor, -1))(x.cuda())
assert torch.allclose(made.cpu(), torch.softmax(x * factor, -1), rtol=1e-5)
print("kept" if counters["inductor"]["fxgraph_cache_hit"] else "made")
