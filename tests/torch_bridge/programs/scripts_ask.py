"""Scripts that ask tensors where they are, and move them: python scripts_ask.py DEVICE FILE."""

import io
import sys

import torch
from torch import Tensor


def helper(x: Tensor) -> torch.device:
    return x.device


@torch.jit.script
def asked(x: Tensor) -> tuple[torch.device, torch.device, bool, bool, int]:
    if x.is_cuda:
        return x.device, helper(x), x.is_cuda, x.is_cpu, x.get_device()
    return helper(x), x.device, x.is_cuda, x.is_cpu, x.get_device()


@torch.jit.script
def moved(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    zeros = torch.zeros([2], device=x.device)
    return zeros, torch.arange(3).to(x.device), x.cpu(), x.to("cpu", torch.float64)


def plus_one(x: Tensor) -> Tensor:
    return torch.zeros([2], device=x.device) + 1


def times(x: Tensor, count: int) -> Tensor:
    inner = torch.jit.fork(plus_one, x)
    return torch.jit.wait(inner) + torch.zeros_like(x) + count


@torch.jit.script
def later(x: Tensor) -> tuple[list[Tensor], torch.jit.Future[Tensor]]:
    kept = [torch.jit.fork(times, x, i) for i in range(2)]
    return [torch.jit.wait(item) for item in kept], kept[1]


@torch.jit.script
def like(x: Tensor) -> list[Tensor]:
    on_host = x.new_ones([2], device="cpu")
    return [torch.zeros_like(x, device="cpu"), on_host, torch.rand_like(x, device=x.device)]


@torch.jit.script
def follows(x: Tensor, y: Tensor) -> list[Tensor]:
    later = torch.jit.fork(plus_one, x)
    assert not x.is_cuda or y.pin_memory().is_pinned()
    return [y.to(x), y.type_as(x), torch.jit.wait(later)]


def unit(name: str) -> torch.jit.CompilationUnit:
    inner = helper  # which it finds where it is called
    assert inner is helper
    return torch.jit.CompilationUnit(f"""
def {name}(x: Tensor):
    return inner(x), x.is_cuda
""")


written = unit("where")


class Inner(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.is_cuda else x * 3


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.linear = Inner(), torch.nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        assert x.device == self.linear.weight.device
        return self.inner(x)


def main(name: str, path: str) -> None:
    x = torch.ones(2, device=name, requires_grad=True)
    places = [asked(x), asked(x)]
    with torch.inference_mode():
        places.append(asked(torch.ones(2, device=name)))
    module = torch.jit.script(Outer()).to(name)
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    loaded = torch.jit.load(file, map_location=name)
    values = [module(x).tolist(), loaded(x).tolist()]
    moved(x)[3].sum().backward()
    assert x.grad is not None
    values.extend(item.tolist() for item in later(x)[0])
    tensors = *moved(x), x.grad, *follows(x, torch.ones(2)), *like(x), later(x)[1].wait()
    devices = [item.device for item in tensors]
    torch.save([places, values, [*devices, written.where(x)]], path)


if __name__ == "__main__":
    main(*sys.argv[1:])
