"""A graph of given lines on a list ``v`` of tensors does what the lines do one by one.

python random_graph.py LINES ROWS
"""

import sys

import torch

torch.manual_seed(0)
work = compile(sys.argv[1], "work", "exec")


def launch(values):
    exec(work, {"torch": torch, "v": values})


tensors = [torch.randn(int(sys.argv[2]), 4) for _ in range(3)]
on_device = [item.cuda() for item in tensors]
g = torch.cuda.CUDAGraph()
captured = list(on_device)
with torch.cuda.graph(g):
    launch(captured)
assert all(torch.equal(one.cpu(), other) for one, other in zip(on_device, tensors, strict=True))
for _ in range(2):
    for one, other in zip(on_device, tensors, strict=True):
        other.normal_()
        one.copy_(other)
    expected = list(tensors)
    launch(expected)
    g.replay()
    assert len(captured) == len(expected)
    for one, other in zip(captured, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one.cpu(), other, equal_nan=True)
