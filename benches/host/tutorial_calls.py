"""The host side of the kernels in Triton's tutorials: the same code for kernbench and PyTorch.

``torch`` is a run's context, or PyTorch itself under Triton's interpreter.
"""

from __future__ import annotations

from typing import Any

import triton
import tutorial_kernels as kernels
from tutorial_attention import attention
from tutorial_gemm import matmul

PROGRAMS_AT_ONCE = 256
"""What the softmax is launched with: eight programs on each of 32 PEs."""


def add(torch: Any, x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    n = x.shape[0]
    kernels.vector_add[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    return out


def softmax(torch: Any, x: Any) -> Any:
    rows, columns = x.shape
    out = torch.empty_like(x)
    kernels.softmax[(min(PROGRAMS_AT_ONCE, rows),)](
        out, x, columns, columns, rows, columns,
        BLOCK=triton.next_power_of_2(columns), STAGES=2, num_warps=8,
    )  # fmt: skip
    return out


def product(torch: Any, a: Any, b: Any, *, persistent: bool = False) -> Any:
    (m, k), n, tile = a.shape, b.shape[1], 128
    c = torch.empty((m, n), dtype=a.dtype)
    if persistent:
        kernels.persistent_matmul[(32,)](a, b, c, m, n, k, BM=tile, BN=tile, BK=64, G=8)
    else:
        grid = (triton.cdiv(m, tile) * triton.cdiv(n, tile),)
        matmul[grid](a, b, c, m, n, k, BM=tile, BN=tile, BK=64, G=8)
    return c


def attend(torch: Any, q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
    batch, heads, length, head = q.shape
    out = torch.empty_like(q)
    logs = torch.empty((batch, heads, length), dtype=torch.float32)
    attention[(triton.cdiv(length, 128), batch * heads)](
        q, k, v, out, logs, head**-0.5, batch, heads, length,
        HEAD=head, BLOCK_M=128, BLOCK_N=64, CAUSAL=causal,
    )  # fmt: skip
    return out


def norm_backward(torch: Any, dy: Any, x: Any, w: Any, mean: Any, rstd: Any) -> Any:
    rows, columns = x.shape
    # The wider the rows, the fewer sums of the weights' gradients.
    widths = ((1024, 256), (4096, 128), (8192, 96))
    groups = next((groups for width, groups in widths if columns <= width), 64)
    locks = torch.zeros(2 * groups, dtype=torch.int32)
    part_w, part_b = (torch.zeros((groups, columns), dtype=x.dtype) for _ in range(2))
    dx, dw, db = torch.empty_like(dy), torch.empty_like(w), torch.empty_like(w)
    kernels.norm_backward_rows[(rows,)](
        dx, dy, part_w, part_b, x, w, mean, rstd, locks, columns, columns,
        GROUP=groups, BLOCK=triton.next_power_of_2(columns), num_warps=8,
    )  # fmt: skip
    kernels.norm_backward_columns[(triton.cdiv(columns, 128),)](
        part_w, part_b, dw, db, min(groups, rows), columns, BLOCK_M=32, BLOCK_N=128
    )
    return dx, dw, db
