"""What torch.autocast("cuda") casts; each function asserts dtypes, and numbers.

python autocast.py CASE [ARGUMENTS]
"""

import sys
import warnings

import torch
import torch.nn as nn
from torch.testing._internal.autocast_test_lists import AutocastTestLists


def what_pytorch_lists_for_cuda_is_cast(has_data: str) -> None:
    warnings.simplefilter("ignore")
    # The CPU has no cuDNN, and what is below convolutions has no shape function in PyTorch 2.12.
    WITHOUT = {"cudnn_convolution", "cudnn_convolution_transpose", "_convolution"}
    half, full = torch.float16, torch.float32
    lists = AutocastTestLists("cuda:0")

    def cast(value, dtype):
        if isinstance(value, torch.Tensor):
            return value.to(dtype) if value.is_floating_point() else value
        if isinstance(value, (list, tuple)):
            return type(value)(cast(item, dtype) for item in value)
        return value

    def listed(value):
        return value if isinstance(value, tuple) else (value,)

    def check(module, entries, dtype):
        count = 0
        for name, args, *rest in entries:
            if name in WITHOUT or not hasattr(module, name) or isinstance(args, str):
                continue
            named = rest[0] if rest and isinstance(rest[0], dict) else {}
            with torch.autocast("cuda", half):
                result = getattr(module, name)(*args, **named)
                with torch.autocast("cuda", enabled=False):
                    wanted = getattr(module, name)(*cast(args, dtype), **named)
            for one, other in zip(listed(result), listed(wanted), strict=True):
                assert one.dtype == dtype, (name, one.dtype)
                if has_data != "data":
                    continue
                assert torch.equal(one.isnan(), other.isnan()), name
                torch.testing.assert_close(
                    one.nan_to_num(), other.nan_to_num(), rtol=1e-3, atol=1e-3
                )
            count += 1
        return count

    assert check(torch, lists.torch_fp16, half) > 20
    assert check(torch._C._nn, lists.nn_fp16, half) == 1
    assert check(torch._C._linalg, lists.linalg_fp16, half) == 2
    assert check(torch, lists.torch_fp32, full) > 40
    assert check(torch._C._nn, lists.nn_fp32, full) > 6
    assert check(torch, lists.torch_need_autocast_promote, full) > 8


def only_tensors_of_devices_are_cast_and_only_inside() -> None:
    w = torch.randn(8, 8, device="cuda")
    host = torch.randn(8, 8)
    with torch.autocast("cuda", torch.bfloat16):
        assert (w @ w).dtype == torch.bfloat16
        assert (host @ host).dtype == torch.float32
        assert (w.double() @ w.double()).dtype == torch.float64
        assert w.half().softmax(0, dtype=torch.float64).dtype == torch.float64
        with torch.autocast("cuda", enabled=False):
            assert (w @ w).dtype == torch.float32
        assert (w @ w).dtype == torch.bfloat16
        q = torch.randn(1, 2, 4, 8, device="cuda")
        attention = torch.nn.functional.scaled_dot_product_attention
        assert attention(q, q, q, is_causal=True).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert (host @ host).dtype == torch.bfloat16
    assert (w @ w).dtype == torch.float32


def training(times: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 16)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 16, device="cuda")
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            y = x
            for _ in range(int(times)):
                y = model(y)  # weights are cast once
            loss = torch.nn.functional.mse_loss(y, x)
        loss.backward()
        assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
        optimizer.step()
        optimizer.zero_grad()


def softmax_of_float16_is_one_operation(has_data: str) -> None:
    torch.manual_seed(0)
    for name in ("softmax", "log_softmax"):
        for shape, dim in (((6, 40), -1), ((3, 5, 4), 1), ((), 0)):
            host = torch.randn(shape, dtype=torch.float16, requires_grad=True)
            there = host.detach().cuda().requires_grad_()
            with torch.autocast("cuda", torch.float16):
                result = getattr(there, name)(dim)
            # What the CPU computes of the same numbers, cast first.
            wanted = getattr(host, name)(dim, dtype=torch.float32)
            outer = torch.linspace(-1, 1, max(host.numel(), 1)).view(host.shape)
            (gradient,) = torch.autograd.grad(result, there, outer.cuda())
            (expected,) = torch.autograd.grad(wanted, host, outer)
            assert result.dtype == torch.float32
            assert gradient.dtype == torch.float16
            if has_data == "data":
                assert torch.equal(result.cpu(), wanted)
                assert torch.equal(gradient.cpu(), expected)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    x = torch.ones(1024, 1024, dtype=torch.float16, device="cuda")
    with torch.autocast("cuda", torch.float16):
        x.softmax(-1)
    # Nothing but the operand and the result.
    assert torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated() == 4 << 20


def what_cuda_refuses_under_autocast_is_refused() -> None:
    x = torch.rand(4, device="cuda")
    with torch.autocast("cuda"):
        torch.nn.functional.binary_cross_entropy(x, x)


def after_a_run_pytorch_has_its_own_kernels() -> None:
    x = torch.ones(2, 2).cuda()
    with torch.autocast("cuda"):
        x.mm(x)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
