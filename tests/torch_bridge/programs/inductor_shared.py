"""Ranks compile a layer whose code they share: more ranks than one process may recompile."""

import os

import torch

torch.cuda.set_device(int(os.environ["RANK"]))
torch.manual_seed(0)
layer = torch.nn.Linear(8, 8)
x = torch.ones(2, 8)
expected = layer(x)
step = torch.compile(layer.cuda(), fullgraph=True)
assert torch.allclose(step(x.cuda()).cpu(), expected, rtol=1e-5, atol=1e-6)
