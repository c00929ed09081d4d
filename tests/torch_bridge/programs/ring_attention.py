"""Attention by blocks of keys, as ring attention calls flash_attn, against float32 on the host.

A shard of queries meets the blocks of keys one after the other. Results are merged by their log of
sums; in the backward pass each block gets the merged ones. Shards are those of ring-flash-attn's
three forms.
"""

import pytest
import torch
from flash_attn.flash_attn_interface import (
    _flash_attn_backward,
    _flash_attn_forward,
    _flash_attn_varlen_backward,
    _flash_attn_varlen_forward,
)

SHARDS, ROWS, HEADS, SIZE = 3, 16, 4, 32
LENGTH = SHARDS * ROWS
SCALE = SIZE**-0.5
TOLERANCE = 3e-2
"""Of bfloat16, in numbers up to 4."""


def of_ring(shard):
    return torch.arange(LENGTH).chunk(SHARDS)[shard]


def of_zigzag(shard):
    parts = torch.arange(LENGTH).chunk(2 * SHARDS)
    return torch.cat([parts[shard], parts[2 * SHARDS - 1 - shard]])


def of_stripe(shard):
    return torch.arange(LENGTH)[shard::SHARDS]


def ring(shard, block):
    return None if block > shard else (slice(None), slice(None), block == shard)


def zigzag(shard, block):
    if block == shard:
        return slice(None), slice(None), True
    half = ROWS // 2
    seen = (slice(None), slice(half)) if block < shard else (slice(half, None), slice(None))
    return *seen, False


def stripe(shard, block):
    rows = slice(None), slice(None)
    return *(rows if block <= shard else (slice(1, None), slice(-1))), True


FORMS = {"ring": (of_ring, ring), "zigzag": (of_zigzag, zigzag), "stripe": (of_stripe, stripe)}


def attend(q, keys, causal, ends):
    k, v = keys
    if ends is None:
        return _flash_attn_forward(q, k, v, 0.0, SCALE, causal, -1, -1, 0.0, None, False)[:2]
    ends_q, ends_k = (ends * (len(item) // int(ends[-1])) for item in (q, k))
    counts = len(q) // 2, len(k) // 2
    return _flash_attn_varlen_forward(q, k, v, ends_q, ends_k, *counts, 0.0, SCALE, causal)[:2]


def backward(operands, causal, ends):
    dout, q, k, v, out, lse = operands
    tensors = [torch.empty_like(item) for item in (q, k, v)]
    value = (dout, q, k, v, out, lse, *tensors)
    options = (0.0, SCALE, causal, -1, -1, 0.0, None, False)
    if ends is None:
        _flash_attn_backward(*value, *options)
    else:
        counts = len(q) // 2, len(k) // 2
        ends_q, ends_k = (ends * (len(item) // int(ends[-1])) for item in (q, k))
        _flash_attn_varlen_backward(*value, ends_q, ends_k, *counts, *options)
    return tensors


def merged(parts):
    """Outputs (..., rows, heads, size) and logs of sums (..., heads, rows) of all keys."""
    lse = torch.stack([item for _, item in parts]).logsumexp(0)
    shares = [(item - lse).exp().transpose(-1, -2).unsqueeze(-1) for _, item in parts]
    return sum(out * share for (out, _), share in zip(parts, shares, strict=True)), lse


def in_blocks(form, operands, dim, ends):
    """The output and gradients of every row, computed by shards and blocks."""
    rows_of, seen = form
    q, k, v, dout = operands
    whole = [torch.zeros(item.shape) for item in (q, q, k, v)]

    def cut(tensor, shard):
        rows = rows_of(shard)
        return tensor.index_select(dim, rows).bfloat16().cuda()

    for shard in range(SHARDS):
        mine, grad = cut(q, shard), cut(dout, shard)
        out = torch.zeros(mine.shape, device="cuda")
        lse = torch.full((*mine.shape[:dim], HEADS, mine.shape[dim]), -torch.inf, device="cuda")
        blocks = []
        for block in range(SHARDS):
            pair = seen(shard, block)
            if pair is not None:
                at = (slice(None),) * dim
                blocks.append((block, (*at, pair[0]), (*at, pair[1]), pair[2]))
        for block, queries, keys, causal in blocks:
            these = [cut(item, block)[keys] for item in (k, v)]
            part = attend(mine[queries], these, causal, ends)
            of_lse = (..., queries[-1])
            both = merged([(out[queries], lse[of_lse]), part])
            out[queries], lse[of_lse] = both
        for block, queries, keys, causal in blocks:
            these = [cut(item, block)[keys] for item in (k, v)]
            sums = lse[..., queries[-1]].contiguous()
            value = (grad[queries], mine[queries], *these, out.bfloat16()[queries], sums)
            result = backward(value, causal, ends)
            for total, which, rows, answer in zip(
                whole[1:], (shard, block, block), (queries, keys, keys), result, strict=True
            ):
                places = rows_of(which)[rows[-1]]
                total.index_add_(dim, places, answer.float().cpu())
        whole[0].index_copy_(dim, rows_of(shard), out.cpu())
    return whole


def by_definition(q, k, v, dout):
    leaves = [item.clone().requires_grad_() for item in (q, k, v)]
    scores = torch.einsum("bihd,bjhd->bhij", leaves[0], leaves[1]) * SCALE
    unseen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    out = torch.einsum(
        "bhij,bjhd->bihd", scores.masked_fill(unseen, -torch.inf).softmax(-1), leaves[2]
    )
    out.backward(dout)
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def check(result, wanted, what):
    for item, right in zip(result, wanted, strict=True):
        assert right.abs().max() > 1, what
        assert (item - right).abs().max() < TOLERANCE, (what, (item - right).abs().max())


torch.manual_seed(0)
operands = [torch.randn(2, LENGTH, HEADS, SIZE) for _ in range(4)]
wanted = by_definition(*operands)
for name, form in FORMS.items():
    check(in_blocks(form, operands, 1, None), wanted, name)

# Both sequences after one another: each shard has its rows of the first, then of the second.
ends = torch.tensor([0, 1, 2], dtype=torch.int32, device="cuda")
tokens = [operand.flatten(0, 1) for operand in operands]


def rows_of_both(shard):
    return torch.cat([of_ring(shard), of_ring(shard) + LENGTH])


result = in_blocks((rows_of_both, ring), tokens, 0, ends)
check(result, [item.flatten(0, 1) for item in wanted], "varlen")

# Sums of other queries are refused, in place of read.
x = torch.zeros(1, 8, 2, 32, dtype=torch.bfloat16, device="cuda")
with pytest.raises(RuntimeError, match=r"softmax_lse must have shape \(1, 2, 8\), .* \(1, 2, 4\)"):
    backward([x, x, x, x, x, torch.zeros(1, 2, 4, device="cuda")], False, None)
