"""Elementwise, with a report over sizes: the device is asked for at import time."""

import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def scaled_add_kernel(x_ptr, y_ptr, out_ptr, alpha, count, BLOCK: tl.constexpr):
    first = tl.program_id(axis=0) * BLOCK
    where = first + tl.arange(0, BLOCK)
    inside = where < count
    x = tl.load(x_ptr + where, mask=inside)
    y = tl.load(y_ptr + where, mask=inside)
    tl.store(out_ptr + where, x + alpha * y, mask=inside)


def scaled_add(x: torch.Tensor, y: torch.Tensor, alpha: float) -> torch.Tensor:
    out = torch.empty_like(x)
    assert x.device == DEVICE
    assert out.is_cuda

    def grid(meta):
        return (triton.cdiv(out.numel(), meta["BLOCK"]),)

    scaled_add_kernel[grid](x, y, out, alpha, out.numel(), BLOCK=1024)
    return out


torch.manual_seed(0)
a = torch.rand(70001, device=DEVICE)
b = torch.rand(70001, device="cuda")
torch.testing.assert_close(scaled_add(a, b, 0.25), a + 0.25 * b)


@triton.testing.perf_report(
    triton.testing.Benchmark(
        x_names=["size"],
        # Only its time is asked for: the largest takes 2 GiB and no time.
        x_vals=[2**power for power in (12, 20, 27)],
        x_log=True,
        line_arg="provider",
        line_vals=["triton"],
        line_names=["Triton"],
        ylabel="GB/s",
        plot_name="scaled-add",
        args={},
    )
)
def benchmark(size, provider):
    x = torch.empty(size, device=DEVICE)
    quantiles = [0.5, 0.2, 0.8]
    ms, low, high = triton.testing.do_bench(lambda: scaled_add(x, x, 2.0), quantiles=quantiles)
    assert ms == low == high > 0
    return 3 * x.numel() * x.element_size() * 1e-6 / ms


result = benchmark.run(print_data=True, return_df=True)
assert len(result) == 3
print("all close")
