"""Tensors inside of torch.func's transforms are where those are that were given."""

import torch

x = torch.randn(3, 4, device="cuda")


def twice(q):
    assert q.device == x.device
    assert q.is_cuda
    assert q.get_device() == 0
    ones = torch.ones(4, device=q.device) + q.new_ones(4) + torch.zeros_like(q[..., :1])
    assert ones.is_cuda
    double = (q * ones).to(q.device).double().float()
    assert double.device == x.device
    order = torch.arange(4, device=q.device)
    return torch.empty_like(double).copy_(double) * 0 + double.index_select(-1, order)


def squared(q):
    return twice(q).square().sum()


torch.testing.assert_close(torch.func.grad(squared)(x), 8 * x)
torch.testing.assert_close(torch.func.vmap(torch.func.grad(squared))(x), 8 * x)
torch.testing.assert_close(torch.func.vmap(twice)(x), 2 * x)
assert torch.func.jacrev(twice)(x).device == x.device
result, back = torch.func.vjp(twice, x)
torch.testing.assert_close(back(torch.ones_like(result))[0], torch.full_like(x, 2))
cubes = torch.func.hessian(lambda q: (q**3 * torch.ones(4, device=q.device)).sum())(x[0])
torch.testing.assert_close(cubes, torch.diag(6 * x[0]))
