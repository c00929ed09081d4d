"""What programs put into compiled functions beside tensors and products computes as on the host."""

import pytest
import torch
import torch.compiler.config as compiler_config
import triton
import triton.language as tl
from torch import arange, rand_like
from torch._inductor import config
from torch._inductor import utils as inductor_utils
from torch._inductor.codecache import CacheBase
from torch.library import triton_op, wrap_triton

torch.manual_seed(0)


def near(result, expected, tolerance=1e-5):
    torch.testing.assert_close(result.cpu().float(), expected, rtol=tolerance, atol=tolerance)


# A graph that no tensor goes into, the first of all.
result = torch.compile(lambda: torch.ones(3, device="cuda") * torch.tensor(2.0, device="cuda"))()
near(result, torch.full((3,), 2.0))


# Functions that a program has taken out of PyTorch's modules, in a global, a cell and an argument.
def of_ones(make, x, like=torch.full_like):
    return make(x) + rand_like(x) * 0 + torch.randn_like(x) * 0 + like(x, 2.0) + arange(3).cuda()


result = torch.compile(of_ones, fullgraph=True)(torch.ones_like, torch.ones(3, device="cuda"))
near(result, torch.tensor([3.0, 4.0, 5.0]))


# Parts of a tensor in inference mode, as rotary embeddings of serving programs take them.
@torch.compile
def rotated(cache, positions, x):
    cos, sin = cache[positions].chunk(2, dim=-1)
    return x * cos + sin


with torch.inference_mode():
    table, x = torch.rand(16, 8), torch.rand(4, 4)
    result = rotated(table.cuda(), torch.arange(4).cuda(), x.cuda())
    near(result, x * table[:4, :4] + table[:4, 4:])


# The compiler's estimates read the machine: what NVIDIA's data sheet says of an H100 SXM.
assert abs(inductor_utils.get_device_tflops(torch.bfloat16) / 989.4 - 1) < 0.01
assert abs(inductor_utils.get_gpu_dram_gbps() / 3350 - 1) < 0.05


# A graph that is captured leaves what it writes where the program looks for it.
cache, expected = torch.zeros(4, 8).cuda(), torch.zeros(4, 8)


@torch.compile(mode="reduce-overhead")
def write(x, position):
    cache.index_copy_(0, position, x)
    return cache.sum(0)


for row in range(4):
    x = torch.randn(1, 8)
    total = write(x.cuda(), torch.tensor([row]).cuda())
    expected[row] = x[0]
    near(total, expected.sum(0))
near(cache, expected)


# Graphs that are replayed keep what a backward pass needs, and gradients add up.
linear = torch.nn.Linear(8, 8).cuda()
pictures = torch.randn(3, 4, 8).cuda()


def gradient(function):
    linear.zero_grad(set_to_none=True)
    first, second = (function(picture) for picture in pictures[:2])
    (first + second).backward()
    function(pictures[2]).backward()
    return linear.weight.grad.cpu()


expected = gradient(lambda x: linear(x).sin().sum())
for backend in ({"mode": "reduce-overhead"}, {"backend": "cudagraphs"}):
    captured = torch.compile(lambda x: linear(x).sin().sum(), **backend)
    for _ in range(4):
        near(gradient(captured), expected)
    # As on a GPU, the result of one call is overwritten by the next.
    losses = []
    for picture in pictures:
        losses.append(captured(picture))
        losses[-1].backward()
    near(losses[2].detach(), linear(pictures[2]).sin().sum().detach().cpu())
    with pytest.raises(RuntimeError, match="overwritten by a subsequent run"):
        losses[1].item()


# A tensor of the device is an index beside others.
def masked(x, at):
    return x[None, None, at] + 1


x, at = torch.randn(6, 4), torch.tensor([2, 5])
near(torch.compile(masked, fullgraph=True)(x.cuda(), at.cuda()), masked(x, at))


# Streams and events break graphs.
def timed(x):
    side = torch.cuda.Stream()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    with torch.cuda.stream(side):
        y = x + 1
    torch.cuda.current_stream().wait_stream(side)
    end.record()
    torch.cuda.synchronize()
    return y * 2, start.elapsed_time(end)


x = torch.randn(5)
y, took_ms = torch.compile(timed)(x.cuda())
near(y, (x + 1) * 2)
assert took_ms > 0


# Properties of the device are constants.
def per_multiprocessor(x):
    return x * torch.cuda.get_device_properties(x.device).multi_processor_count


near(torch.compile(per_multiprocessor, fullgraph=True)(x.cuda()), x * 132)


# Lists of numbers are indices.
def swapped(x):
    y = x.clone()
    y[:, [2, 0]] = x[:, [0, 2]]
    return y[[True, False, True]]


x = torch.randn(3, 4)
near(torch.compile(swapped, fullgraph=True)(x.cuda()), swapped(x))


# Control flow is in the graph.
def signed(x):
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


compiled = torch.compile(signed, fullgraph=True)
for sign in (1, -1):
    x = torch.full((5,), 2.0 * sign)
    near(compiled(x.cuda()), x + sign)


# An operator of kernels that was called eagerly before.
@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + at, mask=at < n) + 2 * tl.load(y + at, mask=at < n)
    tl.store(out + at, total, mask=at < n)


@triton_op("inductor_parts::add_twice", mutates_args={})
def add_twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(add_kernel)[(triton.cdiv(x.numel(), 128),)](x, y, out, x.numel(), BLOCK=128)
    return out


add_twice.register_autograd(lambda context, grad: (grad, 2 * grad))
x, y = (torch.randn(300, requires_grad=True) for _ in range(2))
on_device = [item.detach().cuda().requires_grad_() for item in (x, y)]
near(add_twice(*on_device).detach(), (x + 2 * y).detach())
torch.compile(lambda x, y: add_twice(x.sin(), y).square().sum(), fullgraph=True)(
    *on_device
).backward()
(x.sin() + 2 * y).square().sum().backward()
for mine, other in zip(on_device, (x, y), strict=True):
    near(mine.grad, other.grad)


# Results of libraries lie as a GPU's do, which the compiler expects.
def transformed(x):
    spectrum = torch.fft.rfftn(x)
    return torch.fft.irfftn(spectrum * 2, x.shape), torch.linalg.svdvals(x) + 1


x = torch.randn(4, 6, 5)
for mine, expected in zip(torch.compile(transformed)(x.cuda()), transformed(x), strict=True):
    near(mine, expected)


# Tensors of one element, whose number the compiler knows, are where the program made them.
x = torch.randn(3, 4)


def constants(x):
    one = torch.tensor([3], device="cuda")
    other = one * 2 + 1
    other.add_(1)
    return x * one + other, other.cpu() + torch.tensor([2]), x * one.item()


result = torch.compile(constants, fullgraph=True)(x.detach().cuda())
assert [item.device.type for item in result] == ["cuda", "cpu", "cuda"]
for mine, expected in zip(result, (3 * x + 8, torch.tensor([10.0]), 3 * x), strict=True):
    near(mine, expected.detach())


# A list of numbers that the program puts on the device stays there where gradients are compiled.
def weighted(x):
    return (x * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)).sin()


x = torch.randn(3, 4)
gradients = []
for function, item in ((torch.compile(weighted), x.cuda()), (weighted, x.clone())):
    function(item.requires_grad_()).sum().backward()
    gradients.append(item.grad)
near(*gradients)


# Templates of products are tried with numbers of eight bits, too, and with what follows them.
def quantized(x):
    scale = x.abs().max() / 448
    return (x / scale).to(torch.float8_e4m3fn), scale


a, b = torch.randn(64, 128), torch.randn(128, 128)
(a8, scale_a), (b8, scale_b) = quantized(a.cuda()), quantized(b.cuda())


def product(a8, b8, scale_a, scale_b):
    value = {"scale_a": scale_a, "scale_b": scale_b, "out_dtype": torch.bfloat16}
    return torch._scaled_mm(a8, b8.t(), **value).relu()


with config.patch(
    max_autotune=True, max_autotune_gemm_backends="TRITON", autotune_fallback_to_aten=False
):
    result = torch.compile(product)(a8, b8, scale_a, scale_b)
expected = (a @ b.t()).relu()
near(result / result.max(), expected / expected.max(), 0.05)

# Choices are kept for this machine, data mode and kernbench, not for a device of that name.
kept = CacheBase.get_local_cache_path()
assert kept.is_file()
assert kept.name.endswith(compiler_config.cache_key_tag)
assert "-kernbench-" in kept.name
