# The same addresses with and without "% n", as Inductor writes a split reduction: the same time.
# run: kernbench torchrun --machine h100-sxm {file}
# expect: alike: True

import torch
import triton
import triton.language as tl


@triton.jit
def row_sums(
    x, y, rows, columns, n, MODULO: tl.constexpr, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr
):
    row = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    total = tl.zeros([XBLOCK, RBLOCK], tl.float32)
    for start in tl.range(0, columns, RBLOCK):
        column = start + tl.arange(0, RBLOCK)[None, :]
        at = column + columns * row
        source = at % n if MODULO else at
        total += tl.load(x + source, (column < columns) & (row < rows) & (at < n), other=0.0)
    tl.store(y + row, tl.sum(total, 1)[:, None], row < rows)


x = torch.randn(4_000_000, device="cuda")
y = torch.zeros(489, device="cuda")
times = []
for modulo in (False, True):
    launch = lambda: row_sums[(123,)](
        x, y, 489, 8180, 4_000_000, MODULO=modulo, XBLOCK=4, RBLOCK=2048
    )
    ms = triton.testing.do_bench(launch)
    times.append(ms)
    print("modulo" if modulo else "plain", f"{ms * 1000:.1f} us")
print("alike:", abs(times[1] / times[0] - 1) < 0.02)
