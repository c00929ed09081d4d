# The same gather with its offsets added in two orders: the same time, near its roofline of 10 us.
# run: kernbench torchrun --machine h100-sxm {file}
# expect: alike: True, near its roofline: True

import torch
import triton
import triton.language as tl


@triton.jit
def gather_rows(
    x, index, y, stride, TOGETHER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    at = tl.load(index + tl.program_id(0) * ROWS + tl.arange(0, ROWS))
    column = tl.arange(0, COLUMNS)
    if TOGETHER:
        source = x + (at[:, None] * stride + column[None, :])
    else:
        source = x + at[:, None] * stride + column[None, :]
    tl.store(y + tl.program_id(0), tl.sum(tl.load(source).to(tl.float32)))


n = 1 << 17
x = torch.randn(n, 128, device="cuda").bfloat16()
index = torch.arange(n, dtype=torch.int32, device="cuda")
y = torch.zeros(n // 32, device="cuda")
times = []
for together in (False, True):
    gather_rows[(n // 32,)](x, index, y, 128, TOGETHER=together, ROWS=32, COLUMNS=128)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    gather_rows[(n // 32,)](x, index, y, 128, TOGETHER=together, ROWS=32, COLUMNS=128)
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end) * 1000)
    print("x + (rows + columns)" if together else "(x + rows) + columns", f"{times[-1]:.1f} us")
alike = abs(times[1] / times[0] - 1) < 0.02
print(f"alike: {alike}, near its roofline: {max(times) < 3 * 10}")
