"""Attention of device tensors, eager or compiled.

python attention.py CASE eager|compiled [ARGUMENTS]"""

import functools
import itertools
import math
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import FlopCounterMode

COMPILED = sys.argv[2] == "compiled"


def made(function):
    return torch.compile(function) if COMPILED else function


def results(function, operands, device, dtype):
    """Return what a function gives and its gradients, on the host in float64."""
    value = [
        operand.to(device)
        if operand.dtype is torch.bool
        else operand.to(device, dtype).requires_grad_()
        for operand in operands
    ]
    out = function(*value)
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape)
    (out * weights.to(dtype).to(device)).sum().backward()
    grads = [item.grad for item in value if item.dtype is not torch.bool]
    return [item.detach().cpu().double() for item in (out, *grads)]


def numbers():
    """Masks, heads that are shared, lengths and sizes, against the host in float64."""
    torch.manual_seed(0)
    limits = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float64: 1e-9}
    every = itertools.product(limits, ((4, 4), (4, 2)), ((16, 16), (5, 33)), (16, 20), range(4))
    # Compiling takes a second a case.
    for case in itertools.islice(every, 0, None, 13 if COMPILED else 1):
        torch.compiler.reset()
        dtype, (heads, keys_heads), (queries, keys), width, kind = case
        operands = [
            torch.randn(2, count, length, size, dtype=torch.float64)
            for count, length, size in (
                (heads, queries, 32),
                (keys_heads, keys, 32),
                (keys_heads, keys, 32 if kind < 2 else width),
            )
        ]
        if kind == 2:
            seen = torch.rand(2, 1, queries, keys) > 0.3
            seen[..., 0] = True
            operands.append(seen)
        elif kind == 3:
            operands.append(torch.randn(1, heads, queries, keys, dtype=torch.float64))

        def attend(q, k, v, mask=None, is_causal=kind == 1):
            return F.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, enable_gqa=True)

        result = results(made(attend), operands, "cuda", dtype)
        operands = [
            operand if operand.dtype is torch.bool else operand.to(dtype) for operand in operands
        ]
        for one, expected in zip(
            result, results(attend, operands, "cpu", torch.float64), strict=True
        ):
            assert float((one - expected).abs().max() / expected.abs().max()) < limits[dtype], case


def dropout(dtype):
    """What is kept is scaled, forward and backward alike, and drawn from the program's seed."""
    size, rate = 64, 0.25
    q, k = torch.randn(2, 1, 2, size, size).unbind()
    v = torch.eye(size).expand(1, 2, size, size).contiguous()
    attend = made(lambda *value: F.scaled_dot_product_attention(*value, None, rate, True))
    argument = [item.cuda().to(getattr(torch, dtype)).requires_grad_() for item in (q, k, v)]
    limit = 1e-5 if dtype == "float32" else 4e-2

    torch.manual_seed(3)
    out = attend(*argument)
    later = torch.ones(size, size, dtype=torch.bool).triu(1)
    kept = out.detach().cpu() != 0
    share = float(kept[~later.expand_as(kept)].float().mean())
    assert abs(share - (1 - rate)) < 0.04, share

    host = [item.double().requires_grad_() for item in (q, k, v)]
    scores = host[0] @ host[1].transpose(-1, -2) / math.sqrt(size)
    shares = torch.softmax(scores.masked_fill(later, -torch.inf), -1) * kept / (1 - rate)
    expected = shares @ host[2]
    weights = torch.randn(1, 2, size, size)
    (out * weights.cuda().to(out.dtype)).sum().backward()
    (expected * weights.double()).sum().backward()
    for one, other in (
        (out, expected),
        *((a.grad, b.grad) for a, b in zip(argument, host, strict=True)),
    ):
        off = (
            one.detach().cpu().double() - other.detach()
        ).abs().max() / other.detach().abs().max()
        assert float(off) < limit, float(off)
    torch.manual_seed(3)
    assert torch.equal(attend(*argument).cpu(), out.cpu())
    assert not torch.equal(attend(*argument).cpu(), out.cpu())


def policies():
    """A checkpoint that saves attention does not compute it again."""
    saved = {torch.ops.aten._scaled_dot_product_flash_attention.default}

    def policy(context, operation, *args, **kwargs):
        return (
            CheckpointPolicy.MUST_SAVE if operation in saved else CheckpointPolicy.PREFER_RECOMPUTE
        )

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)

    def attend(x):
        return F.scaled_dot_product_attention(x.sin(), x, x).cos()

    def block(x):
        return checkpoint(attend, x, use_reentrant=False, context_fn=contexts)

    x = torch.ones(2, 4, 32, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    made(block)(x).sum().backward()


def flops():
    """A count of FLOPs knows the operation."""
    q = torch.ones(2, 4, 32, 64, device="cuda", dtype=torch.float16)
    with FlopCounterMode(display=False) as counted:
        F.scaled_dot_product_attention(q, q, q)
    assert counted.get_total_flops() == 4 * 2 * 4 * 32 * 32 * 64


def steps(masked):
    """Training by attention with dropout, and with a mask."""
    shape = (2, 4, 128, 64)
    q, k, v = (torch.ones(shape, device="cuda").bfloat16().requires_grad_() for _ in range(3))
    mask = torch.zeros(128, 128, device="cuda").bfloat16() if masked == "True" else None
    rate = 0.0 if masked == "True" else 0.1
    made(lambda *value: F.scaled_dot_product_attention(*value, mask, rate))(
        q, k, v
    ).sum().backward()


def autocast():
    """Rotated queries and keys have 32 bits, values that a product gave 16, as a mask may have."""
    attend = made(F.scaled_dot_product_attention)
    masks = (None, torch.ones(8, 8).tril().bool(), torch.zeros(8, 8), torch.zeros(8, 8).half())
    for mask in masks if not COMPILED else masks[::2]:
        torch.compiler.reset()
        q, k, v = torch.randn(3, 1, 2, 8, 16).unbind()
        value = [q.cuda().requires_grad_(), k.cuda().requires_grad_(), v.cuda().bfloat16()]
        seen = None if mask is None else mask.cuda()
        with torch.autocast("cuda", torch.bfloat16):
            out = attend(*value, attn_mask=seen)
        assert out.dtype is torch.bfloat16
        if mask is not None and mask.is_floating_point():
            mask = mask.double()
        expected = F.scaled_dot_product_attention(
            *(item.detach().cpu().bfloat16().double() for item in value),
            attn_mask=mask,
        )
        torch.testing.assert_close(out.detach().cpu().double(), expected, atol=3e-2, rtol=3e-2)
        out.float().sum().backward()
        assert value[0].grad.dtype is torch.float32
    if not COMPILED:
        with pytest.raises(RuntimeError, match="same dtype"):
            attend(*value)


def elsewhere():
    """Inside function transforms, recorded by torch.jit.trace, and of ragged tensors."""
    q, k, v = torch.randn(3, 2, 4, 8, 16, dtype=torch.float64).unbind()
    mine = [item.float().cuda() for item in (q, k, v)]
    attend = F.scaled_dot_product_attention
    result = torch.func.grad(lambda q: attend(q, *mine[1:]).square().sum())(mine[0])
    expected = torch.func.grad(lambda q: attend(q, k, v).square().sum())(q)
    torch.testing.assert_close(result.cpu().double(), expected, atol=1e-5, rtol=1e-5)
    result = torch.func.vmap(attend)(*mine)
    torch.testing.assert_close(result.cpu().double(), attend(q, k, v), atol=1e-5, rtol=1e-5)

    class Model(torch.nn.Linear):
        def forward(self, x):
            heads = super().forward(x).view(2, 5, 4, 4).transpose(1, 2)
            return attend(heads, heads, heads)

    model, x = Model(16, 16, device="cuda"), torch.randn(2, 5, 16, device="cuda")
    torch.testing.assert_close(torch.jit.trace(model, x)(x), model(x))
    rows = [torch.randn(length, 32) for length in (3, 5)]
    ragged = torch.nested.nested_tensor([row.cuda() for row in rows], layout=torch.jagged)
    heads = ragged.unflatten(-1, [4, 8]).transpose(1, 2)
    for one, row in zip(attend(heads, heads, heads).unbind(), rows, strict=True):
        heads = row.view(-1, 4, 8).transpose(0, 1)
        torch.testing.assert_close(one.cpu(), attend(heads, heads, heads), atol=1e-5, rtol=1e-5)


def written_out():
    """Products and a softmax, which the compiler makes attention of."""

    def attend(q, k, v):
        return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(64), -1) @ v

    indices = [torch.randn(2, 4, 64, 64, device="cuda").half().requires_grad_() for _ in range(3)]
    out = made(attend)(*indices)
    expected = attend(*(item.detach().cpu().float() for item in indices))
    torch.testing.assert_close(out.detach().cpu().float(), expected, atol=4e-3, rtol=4e-3)
    out.sum().backward()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[3:])
