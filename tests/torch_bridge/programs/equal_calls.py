"""Calls that differ in one thing each, several times.

python equal_calls.py FOLDER saves their results.
"""

import sys

import torch

x = torch.arange(24.0, device="cuda").view(4, 6)
half, ints = x.to(torch.float16), x.to(torch.int64)
weight = torch.nn.Parameter(torch.ones(6, 6, device="cuda"))
conv = torch.nn.Conv2d(4, 4, 3, padding=1, device="cuda", dtype=torch.float16)
image = torch.ones(2, 4, 8, 8, device="cuda", dtype=torch.float16)
# The same shapes in memory formats that take different times.
images = [image.requires_grad_(), image.detach().to(memory_format=torch.channels_last)]
result = []
for step in range(3):
    result += [
        x + x,
        x + 2,
        x + 2.5,
        x + True,
        x.add(x, alpha=2),
        x.add(x, alpha=step),
        x[1:] + x[1:],
        x[:, 1:] * x[:, 1:],
        half + x,
        ints // 3,
        x.sum(),
        x.sum(1),
        x.sum(1, keepdim=True),
        x.sum((0, 1)),
        x.sum(dtype=torch.float64),
        torch.cat([x, x]),
        torch.cat([x, x[:2]]),
        torch.cat([x, x], 1),
        *torch._foreach_add([x, x], 1),
        *torch._foreach_mul([x, half], 2.0),
        x @ weight,
        x.T.contiguous(),
        torch.softmax(x, 0),
        torch.softmax(x, 1),
        x.max(1).values,
        x * torch.tensor(3.0),
        x.clone(),
        x.clone(memory_format=torch.contiguous_format),
        torch.zeros_like(x),
        x.new_full((2, 2), 7),
        torch.where(x > 3, x, 0.0),
    ]
    (x @ weight).relu().mean().backward()
    x.add_(1).mul_(0.5)
    x[0].fill_(2)
    for item in images:
        conv(item).mean().backward()
    result += [weight.grad, conv.weight.grad, conv(image)]
torch.save([entry.detach().cpu() for entry in result], f"{sys.argv[1]}/found.pt")
