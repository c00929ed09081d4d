"""Compiled functions whose results are on the host, in pinned memory where they are in eager mode.

python compiled_to_host.py BACKEND
"""

import sys

import torch

BACKEND = sys.argv[1]


def copied(x):
    return (x * 2).to("cpu", non_blocking=True)


def one_number(x):
    return x.sum().to("cpu", non_blocking=True), x + 1


def waited_for(x):
    return (x * 2).cpu() + 1


def made_pinned(x):
    return torch.full((2,), 3.0, pin_memory=True), x * 1


def sum_of_pinned(x):
    return torch.zeros(2, pin_memory=True) + 1


def shown(values):
    values = values if isinstance(values, tuple) else (values,)
    return [(item.tolist(), item.device.type, item.is_pinned()) for item in values]


x = torch.tensor([1.0, 2.0], device="cuda")
for function in (copied, one_number, waited_for, made_pinned, sum_of_pinned):
    wanted = function(x)
    result = torch.compile(function, backend=BACKEND)(x)
    torch.cuda.synchronize()
    assert shown(result) == shown(wanted), (function, shown(result), shown(wanted))
last = copied(x)
torch.cuda.synchronize()
assert shown(last) == [([2.0, 4.0], "cpu", True)]
