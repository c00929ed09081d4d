"""A small Llama whose RMSNorm, RoPE, SwiGLU and cross entropy are Triton kernels, and its twin.

The twin says the same in PyTorch's own operations. Each rank takes a step of both on a batch of its
own, sums gradients over the ranks and writes losses and gradients to the folder in argv[1].
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl

VOCAB, WIDTH, HEADS, FFN, LAYERS, BATCH, SEQUENCE = 48, 32, 4, 40, 2, 2, 8
HEAD = WIDTH // HEADS
EPSILON = 1e-5


@triton.jit
def rms_norm_forward(x, w, y, inverse, width, EPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < width
    values = tl.load(x + row * width + column, mask=mask, other=0.0)
    scale = 1 / tl.sqrt(tl.sum(values * values) / width + EPS)
    tl.store(inverse + row, scale)
    weights = tl.load(w + column, mask=mask)
    tl.store(y + row * width + column, values * scale * weights, mask=mask)


@triton.jit
def rms_norm_backward(dy, x, w, inverse, dx, dw, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < width
    at = row * width + column
    scale = tl.load(inverse + row)
    normed = tl.load(x + at, mask=mask, other=0.0) * scale
    grad = tl.load(dy + at, mask=mask, other=0.0)
    tl.store(dw + at, grad * normed, mask=mask)
    weighted = grad * tl.load(w + column, mask=mask, other=0.0)
    mean = tl.sum(weighted * normed) / width
    tl.store(dx + at, (weighted - normed * mean) * scale, mask=mask)


class RMSNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        rows = x.numel() // WIDTH
        y, inverse = torch.empty_like(x), x.new_empty(rows)
        rms_norm_forward[(rows,)](x, w, y, inverse, WIDTH, EPS=EPSILON, BLOCK=64)
        ctx.save_for_backward(x, w, inverse)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w, inverse = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.empty_like(x)
        rms_norm_backward[(inverse.numel(),)](
            dy.contiguous(), x, w, inverse, dx, dw, WIDTH, BLOCK=64
        )
        return dx, dw.view(-1, WIDTH).sum(0)


@triton.jit
def rope_kernel(x, y, cosines, sines, sequence, heads, SIGN: tl.constexpr, HALF: tl.constexpr):
    row = tl.program_id(0)
    position = row // heads % sequence
    half = tl.arange(0, HALF)
    cosine = tl.load(cosines + position * HALF + half)
    sine = tl.load(sines + position * HALF + half) * SIGN
    first = tl.load(x + row * 2 * HALF + half)
    second = tl.load(x + row * 2 * HALF + HALF + half)
    tl.store(y + row * 2 * HALF + half, first * cosine - second * sine)
    tl.store(y + row * 2 * HALF + HALF + half, second * cosine + first * sine)


class RopeFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cosines, sines):
        ctx.save_for_backward(cosines, sines)
        return _rotate(x, cosines, sines, 1)

    @staticmethod
    def backward(ctx, dy):
        return _rotate(dy, *ctx.saved_tensors, -1), None, None  # type: ignore[call-arg]


def _rotate(x, cosines, sines, sign):
    x = x.contiguous()
    y = torch.empty_like(x)
    grid = (x.numel() // HEAD,)
    rope_kernel[grid](x, y, cosines, sines, x.shape[1], x.shape[2], SIGN=sign, HALF=HEAD // 2)
    return y


@triton.jit
def swiglu_forward(gate, up, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    g = tl.load(gate + at, mask=mask)
    tl.store(y + at, g * tl.sigmoid(g) * tl.load(up + at, mask=mask), mask=mask)


@triton.jit
def swiglu_backward(dy, gate, up, dgate, dup, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    g, u = tl.load(gate + at, mask=mask), tl.load(up + at, mask=mask)
    d = tl.load(dy + at, mask=mask)
    s = tl.sigmoid(g)
    tl.store(dup + at, d * g * s, mask=mask)
    tl.store(dgate + at, d * u * s * (1 + g * (1 - s)), mask=mask)


class SwiGLUFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        y = torch.empty_like(gate)
        swiglu_forward[(triton.cdiv(gate.numel(), 128),)](gate, up, y, gate.numel(), BLOCK=128)
        return y

    @staticmethod
    def backward(ctx, dy):
        gate, up = ctx.saved_tensors
        dgate, dup = torch.empty_like(gate), torch.empty_like(up)
        grid = (triton.cdiv(gate.numel(), 128),)
        swiglu_backward[grid](dy.contiguous(), gate, up, dgate, dup, gate.numel(), BLOCK=128)
        return dgate, dup


@triton.jit
def cross_entropy_kernel(logits, targets, losses, grads, rows, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < vocab
    values = tl.load(logits + row * vocab + column, mask=mask, other=-float("inf"))
    target = tl.load(targets + row)
    largest = tl.max(values)
    powers = tl.exp(values - largest)
    total = tl.sum(powers)
    picked = tl.sum(tl.where(column == target, values, 0.0))
    tl.store(losses + row, tl.log(total) + largest - picked)
    grad = (powers / total - tl.where(column == target, 1.0, 0.0)) / rows
    tl.store(grads + row * vocab + column, grad, mask=mask)


class CrossEntropyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets):
        rows, vocab = logits.shape
        losses, grads = logits.new_empty(rows), torch.empty_like(logits)
        cross_entropy_kernel[(rows,)](logits, targets, losses, grads, rows, vocab, BLOCK=64)
        ctx.save_for_backward(grads)
        return losses.mean()

    @staticmethod
    def backward(ctx, dloss):
        (grads,) = ctx.saved_tensors
        return grads * dloss, None


class Kernels:
    rms_norm = RMSNormFunction.apply
    rope = RopeFunction.apply
    swiglu = SwiGLUFunction.apply
    cross_entropy = CrossEntropyFunction.apply


class Plain:
    @staticmethod
    def rms_norm(x, w):
        return F.rms_norm(x, (WIDTH,), w, EPSILON)

    @staticmethod
    def rope(x, cosines, sines):
        first, second = x.chunk(2, dim=-1)
        cosines, sines = cosines[:, None], sines[:, None]
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)

    @staticmethod
    def swiglu(gate, up):
        return F.silu(gate) * up

    cross_entropy = staticmethod(F.cross_entropy)


class Block(nn.Module):
    def __init__(self, ops) -> None:
        super().__init__()
        self.ops = ops
        self.norm1, self.norm2 = (nn.Parameter(torch.ones(WIDTH)) for _ in range(2))
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, FFN, bias=False) for _ in range(2))
        self.down = nn.Linear(FFN, WIDTH, bias=False)

    def forward(self, x, cosines, sines):
        h = self.ops.rms_norm(x, self.norm1)
        q, k, v = (f(h).unflatten(-1, (HEADS, HEAD)) for f in self.qkv)
        q, k = self.ops.rope(q, cosines, sines), self.ops.rope(k, cosines, sines)
        q, k, v = (item.transpose(1, 2) for item in (q, k, v))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        h = self.ops.rms_norm(x, self.norm2)
        return x + self.down(self.ops.swiglu(self.gate(h), self.up(h)))


class Llama(nn.Module):
    def __init__(self, ops) -> None:
        super().__init__()
        self.ops = ops
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(ops) for _ in range(LAYERS))
        self.norm = nn.Parameter(torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        angles = torch.outer(torch.arange(SEQUENCE), 100.0 ** -torch.linspace(0, 1, HEAD // 2))
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())

    def forward(self, tokens):
        x = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            x = block(x, self.cosines, self.sines)
        logits = self.head(self.ops.rms_norm(x, self.norm))
        return self.ops.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
result = {}
for ops in (Kernels, Plain):
    torch.manual_seed(0)
    model = Llama(ops).cuda()
    torch.manual_seed(rank)
    loss = model(torch.randint(VOCAB, (BATCH, SEQUENCE + 1)).cuda())
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    grads = {name: parameter.grad.cpu() for name, parameter in model.named_parameters()}
    result[ops.__name__] = {"loss": loss.detach().cpu(), **grads}
torch.save(result, f"{sys.argv[1]}/rank{rank}.pt")
dist.destroy_process_group()
