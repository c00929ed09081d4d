"""A function that is compiled ahead of its first call, saved, and loaded."""

import sys
from pathlib import Path

import torch


def made(x, weight):
    out = torch.empty((x.shape[0], 8), dtype=x.dtype, device=x.device)
    out.fill_(1)
    return torch.nn.functional.linear(out, weight)[:, :1] + x[:, :1]


weight, x = torch.ones(8, 8, device="cuda"), torch.ones(4, 8, device="cuda")
compiled = torch.compile(made, fullgraph=True, dynamic=False).aot_compile(((x, weight), {}))
assert compiled(x, weight).tolist() == made(x, weight).tolist() == [[9.0]] * 4
compiled.save_compiled_function(sys.argv[1])
with Path(sys.argv[1]).open("rb") as file:
    loaded = torch.compiler.load_compiled_function(file)
assert loaded(2 * x, weight).tolist() == [[10.0]] * 4
print("as in eager mode")
