"""A program each of whose lines causes something that can be counted."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x  # squared

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * x  # its own backward


def again(x):
    return torch.tanh(x)  # computed twice


class Layer(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x)  # a module


x = torch.randn(64, 64, device="cuda")
w = torch.randn(64, 64, device="cuda", requires_grad=True)
layer = Layer(64, 64, bias=False).cuda()
for _ in range(2):
    y = layer(x)
    y = y @ w  # two gradients
    with torch.no_grad():
        ones = torch.ones(64, device="cuda")
    z = Square.apply(y)
    z = checkpoint(again, z, use_reentrant=False)
    z.sum().backward()  # the pass
    z = F.relu(ones)  # outside of it
    z.cpu()  # read
