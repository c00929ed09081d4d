"""Triton kernels of the vocabulary-parallel layers; what other layers need is in kernbench.ops.

A rank holds the vocabulary entries ``[first, first + num_local)`` and owns these ids; the first
rank also owns every id below them and the last rank every id above (``is_first``, ``is_last``).
So an id that exists nowhere is an out-of-bounds access on some rank instead of a silent zero.
"""

from __future__ import annotations

import triton
import triton.language as tl

# A rank's place in the vocabulary and the sizes are plain numbers to these kernels: with Triton's
# specialisation on 1 and multiples of 16 every rank would compile its own.
_PLACE = ["first", "num_local", "is_first", "is_last"]


@triton.jit
def _owns(ids, first, num_local, is_first, is_last):
    return ((ids >= first) | (is_first != 0)) & ((ids < first + num_local) | (is_last != 0))


@triton.jit(do_not_specialize=[*_PLACE, "num_tokens", "width"])
def embedding_kernel(
    out_ptr, weight_ptr, ids_ptr, first, num_local, is_first, is_last, num_tokens, width,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``out[m] = weight[ids[m] - first]`` for ids that this rank owns, zeros for the others."""
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    ids = tl.load(ids_ptr + m, mask=m < num_tokens, other=0).to(tl.int64)
    owned = _owns(ids, first, num_local, is_first, is_last) & (m < num_tokens)
    rows = (ids - first)[:, None] * width
    inside = (n < width)[None, :]
    values = tl.load(weight_ptr + rows + n[None, :], mask=owned[:, None] & inside, other=0.0)
    at = m.to(tl.int64)[:, None] * width + n[None, :]
    tl.store(out_ptr + at, values, mask=(m < num_tokens)[:, None] & inside)


@triton.jit(do_not_specialize=[*_PLACE, "num_rows"])
def exp_sum_kernel(
    logits_ptr, targets_ptr, maxima_ptr, sums_ptr, first, num_local, is_first, is_last, num_rows,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Store each row's sum of exponentials and, after all sums, the targets' shifted logits."""
    row = tl.program_id(0)
    row_ptr = logits_ptr + row.to(tl.int64) * num_local
    maximum = tl.load(maxima_ptr + row)
    total = tl.zeros((BLOCK_V,), dtype=tl.float32)
    for start in range(0, num_local, BLOCK_V):
        columns = start + tl.arange(0, BLOCK_V)
        x = tl.load(row_ptr + columns, mask=columns < num_local, other=float("-inf"))
        total += tl.exp(x.to(tl.float32) - maximum)
    tl.store(sums_ptr + row, tl.sum(total, axis=0))

    target = tl.load(targets_ptr + row).to(tl.int64)
    owned = _owns(target, first, num_local, is_first, is_last)
    column = target - first
    # An owned id beyond the vocabulary would land in a neighbouring row: send it past the end.
    past_end = num_rows.to(tl.int64) * num_local
    column = tl.where((column >= 0) & (column < num_local), column, past_end)
    x = tl.load(row_ptr + column, mask=owned, other=0.0).to(tl.float32)
    tl.store(sums_ptr + num_rows + row, tl.where(owned, x - maximum, 0.0))


@triton.jit(do_not_specialize=["num_rows"])
def loss_kernel(sums_ptr, loss_ptr, num_rows, BLOCK: tl.constexpr):
    """Store the negative log-likelihood of each row's target."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < num_rows
    total = tl.load(sums_ptr + rows, mask=inside, other=1.0)
    target = tl.load(sums_ptr + num_rows + rows, mask=inside, other=0.0)
    tl.store(loss_ptr + rows, tl.log(total) - target, mask=inside)
