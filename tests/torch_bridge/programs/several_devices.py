"""Ranks that use several devices each.

python several_devices.py CASE [ARGUMENTS]
"""

import copy
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def gradient_of_a_copy(source, target, data):
    source, target = map(torch.device, (source, target))
    x = torch.arange(3.0, device=source, requires_grad=True)
    w = torch.arange(9.0, device=target).view(3, 3).requires_grad_()
    for moved in (
        x.to(target),
        x.to(device=target, dtype=torch.float64).float(),
        x.to(w),
        torch.zeros(3, device=target).copy_(x),
    ):
        assert moved.device == target
        x.grad = w.grad = None
        ((moved @ w).to(source) * x).sum().backward()
        assert x.grad.device == source
        assert w.grad.device == target
        if data == "True":
            # The gradient of x w x and of w, by hand.
            whole = torch.arange(9.0).view(3, 3)
            mine = torch.arange(3.0)
            torch.testing.assert_close(x.grad.cpu(), (whole + whole.T) @ mine)
            torch.testing.assert_close(w.grad.cpu(), torch.outer(mine, mine))


class _Doubled(torch.autograd.Function):
    """Computes with a gradient that autograd makes where there is none, as ``gradcheck`` tries."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 * ctx.saved_tensors[0]


def second_derivatives():
    x = torch.linspace(0.5, 1.5, 4, dtype=torch.float64, device="cuda:0", requires_grad=True)

    def there(x):
        return (x.to("cuda:1") ** 3).cpu()

    assert torch.autograd.gradcheck(there, x)
    assert torch.autograd.gradcheck(_Doubled.apply, x)
    assert torch.autograd.gradgradcheck(there, x)
    (result,) = torch.autograd.grad(there(x).sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad(result.sum(), x)
    assert result.device == twice.device == x.device
    torch.testing.assert_close(twice.cpu(), 6 * torch.linspace(0.5, 1.5, 4, dtype=torch.float64))


def model_over_two_devices():
    class Halves(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

        def forward(self, x):
            x = self.first(x.to(self.first.weight.device)).relu()
            return self.second(x.to(self.second.weight.device))

    torch.manual_seed(0)
    whole = Halves()
    split = copy.deepcopy(whole)
    split.first.to("cuda:0")
    split.second.to("cuda:1")
    data = torch.randn(6, 8)
    for model in (whole, split):
        optimizer = torch.optim.AdamW(model.parameters())
        for _step in range(3):
            optimizer.zero_grad()
            # In two batches, one behind the other.
            torch.cat([model(part) for part in data.split(3)]).square().mean().backward()
            optimizer.step()
    for expected, parameter in zip(whole.parameters(), split.parameters(), strict=True):
        assert parameter.grad.device == parameter.device
        torch.testing.assert_close(parameter.cpu(), expected)


def ddp_over_two_devices(views):
    dist.init_process_group("nccl")
    rank, size = dist.get_rank(), dist.get_world_size()

    class Ends(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (torch.nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            for layer in (self.a, self.b, self.c):
                x = layer(x.to(layer.weight.device)).tanh()
            return x

    torch.manual_seed(0)
    whole = Ends()
    model = copy.deepcopy(whole)
    if rank:
        torch.nn.init.zeros_(model.a.weight)
    for layer, device in ((model.a, 2 * rank), (model.b, 2 * rank + 1), (model.c, 2 * rank)):
        layer.to(device)
    model = DDP(model, bucket_cap_mb=3e-4, gradient_as_bucket_view=views == "True")
    batches = torch.randn(3, size, 5, 8)
    optimizers = [torch.optim.SGD(item.parameters(), lr=0.1) for item in (whole, model)]
    for step in range(3):
        model(batches[step, rank]).square().mean().backward()
        whole(batches[step].flatten(0, 1)).square().mean().backward()
        for expected, parameter in zip(whole.parameters(), model.parameters(), strict=True):
            assert parameter.grad.device == parameter.device
            torch.testing.assert_close(parameter.grad.cpu(), expected.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def devices_of_tensors():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(0)
    x = torch.full((4,), rank + 1.0, device=f"cuda:{3 - rank}")
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 4
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert (2 * x).tolist() == [12.0] * 4


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
