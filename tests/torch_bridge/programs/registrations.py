"""What ranks register with PyTorch's dispatcher: each its own, or nothing."""

import os
import sys
from typing import Any

import torch
import triton
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
has_data = sys.argv[1] == "data"
calls: list[Any] = []


@triton.jit
def double_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def launch(x):
    calls.append(rank)
    y = torch.empty_like(x)
    double_kernel[(1,)](x, y, x.numel(), BLOCK=64)
    return y


def check(tensor, value):
    assert tensor.is_cuda
    assert tensor.get_device() == rank
    assert not has_data or tensor.tolist() == [value] * tensor.numel(), (rank, tensor, value)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return launch(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (10 + rank)


def gradient_of(function, x):
    return torch.autograd.grad(function(x).sum(), x)[0]


x = torch.full((3,), -1.0, device="cuda", requires_grad=True)
host = torch.full((3,), -1.0, requires_grad=True)


def operators_of_aten():
    check(torch.abs(x), 1)
    library = torch.library.Library("aten", "IMPL", "CUDA")
    if rank == 0:
        library.impl("abs", launch)
    check(torch.abs(x), 1 if rank else -2)
    # The gradient is PyTorch's, and the host has its own kernels.
    check(gradient_of(torch.abs, x), -1)
    assert torch.abs(host).tolist() == [1] * 3
    library.impl("full", lambda size, value, **options: launch(torch.ones(size, **options)))
    check(torch.full((3,), 7.0, device="cuda"), 2)
    assert torch.full((3,), 7.0).tolist() == [7] * 3
    library.impl("copy_", lambda to, source, non_blocking=False: to.fill_(9))
    check(torch.empty(3, device="cuda").copy_(x.detach()), 9)
    library._destroy()
    check(torch.abs(x), 1)
    with torch.library._scoped_library("aten", "IMPL") as library:
        # PyTorch would make it of others.
        library.impl("vstack", lambda tensors: launch(tensors[0].detach()), "CUDA")
        check(torch.vstack([x, x]), -2)
        assert torch.vstack([host, host]).shape == (2, 3)
    assert torch.vstack([x, x]).shape == (2, 3)


def gradients_of_aten():
    library = torch.library.Library("aten", "IMPL")
    if rank == 0:
        library.impl("sin", Scaled.apply, "AutogradCUDA")
    check(gradient_of(torch.sin, x), torch.cos(torch.tensor(-1.0)).item() if rank else 10)
    assert torch.equal(gradient_of(torch.sin, host), torch.cos(host))
    library._destroy()
    if rank == 0 and has_data:
        assert torch.equal(gradient_of(torch.sin, x).cpu(), torch.cos(host))


def kernels_before():
    library = torch.library.Library("aten", "IMPL")
    before = torch.library.get_kernel("aten::neg", "CUDA")
    library.impl("neg", lambda keys, x: before.call_boxed(keys, x) + 10, "CUDA", with_keyset=True)
    check(torch.neg(x), 11)
    of_host = torch.library.get_kernel("aten::neg", "CPU")
    library.impl("neg", lambda keys, x: of_host.call_boxed(keys, x) + 5, "CPU", with_keyset=True)
    check(torch.neg(x), 11)
    assert torch.neg(host).tolist() == [6] * 3
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd)
    library.impl("ceil", lambda x: torch.ops.aten.ceil.default.redispatch(keys, x) + 3, "CUDA")
    check(torch.ceil(x), 2)
    library._destroy()


def operators_of_the_program():
    library = torch.library.Library("kernbench_own", "DEF")
    for schema in (
        *("one(Tensor x) -> Tensor", "two(Tensor x) -> Tensor", "scaled(Tensor x) -> Tensor"),
        *("made_of(Tensor x) -> Tensor", "make(int n, Device device) -> Tensor"),
        *("write(Tensor x, Tensor(a!) out) -> ()", "nothing(Tensor x) -> Tensor"),
    ):
        library.define(schema)
    library.impl("one", launch, "CUDA")
    library.impl("one", lambda x: x - 5, "CPU")
    library.impl("two", lambda x: launch(x) + rank, "CompositeExplicitAutograd")
    library.impl("scaled", Scaled.apply, "AutogradCUDA")
    library.impl("scaled", launch, "CUDA")
    ours = torch.ops.kernbench_own
    library.impl("made_of", lambda x: ours.one(x) + rank)
    torch.library.impl(library, "make", "CUDA")(
        lambda n, device: torch.full((n,), float(rank), device=device)
    )
    library.impl("write", lambda x, out: (out.copy_(launch(x)), None)[1], "CUDA")
    check(ours.one(x), -2)
    assert ours.one(host.detach()).tolist() == [-6] * 3
    check(ours.two(x), -2 + rank)
    check(ours.made_of(x), -2 + rank)
    check(gradient_of(ours.scaled, x), 10 + rank)
    check(ours.make(3, torch.device("cuda")), rank)
    out = torch.zeros(3, device="cuda")
    ours.write(x.detach(), out)
    check(out, -2)
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(lambda operator, x: x + 77, "CUDA")
    check(ours.nothing(x), 76)
    fallback._destroy()
    check(torch.library.wrap_triton(double_kernel) and launch(x), -2)
    torch.library.wrap_triton(double_kernel)[(1,)](x.detach(), out, 2, BLOCK=4)
    check(out, -2)
    if has_data:
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            captured = ours.one(x)
        with torch.no_grad():
            x.fill_(7)
        graph.replay()
        check(captured, 14)
        with torch.no_grad():
            x.fill_(-1)
    library._destroy()


def custom_operators():
    @torch.library.custom_op("kernbench_own::custom", mutates_args=())
    def custom(x: torch.Tensor) -> torch.Tensor:
        return launch(x) + rank

    custom.register_autograd(lambda ctx, gradient: gradient * (20 + rank))
    check(custom(x), -2 + rank)
    check(gradient_of(custom, x), 20 + rank)
    torch.library.register_kernel("kernbench_own::custom", "cuda", lambda x: launch(x) + 100)
    check(custom(x), 98)

    @torch.library.custom_op("kernbench_own::into", mutates_args={"out"})
    def into(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(launch(x))

    out = torch.zeros(3, device="cuda")
    version = out._version
    into(x.detach(), out)
    check(out, -2)
    assert out._version > version


def what_is_kept_beside_the_dispatcher():
    name = "kernbench_kept::f"
    torch.library.define(name, "(Tensor x) -> Tensor")
    torch.library.impl(name, "cuda")(lambda x: x * (4 + rank))
    torch.library.impl(name, "default")(lambda x: x * 100)
    torch.library.register_fake(name, lambda x: x.new_empty(5 + rank))
    torch.library.register_autograd(name, lambda ctx, gradient: gradient * (7 + rank))
    f = torch.ops.kernbench_kept.f
    check(f(x), -4 - rank)
    check(gradient_of(f, x), 7 + rank)
    assert f(host).tolist() == [-100] * 3
    with FakeTensorMode() as mode:
        assert f(mode.from_tensor(torch.ones(2))).shape == (5 + rank,)

    @torch.library.triton_op("kernbench_kept::g", mutates_args={})
    def g(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        torch.library.wrap_triton(double_kernel)[(1,)](x, y, x.numel(), BLOCK=64)
        return y + rank

    check(g(x), -2 + rank)


operators_of_aten()
what_is_kept_beside_the_dispatcher()
gradients_of_aten()
kernels_before()
operators_of_the_program()
custom_operators()
assert set(calls) == {rank}
