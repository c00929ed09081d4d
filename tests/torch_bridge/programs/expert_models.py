"""Small models in the shapes of Mixtral and DeepSeek-V3, whose experts are one Triton kernel.

python expert_models.py NAME PATH

The kernel takes rows in blocks of one expert each, by indices that are data, as serving programs
do. Tokens are those of the same model on the host, which goes through its experts one by one.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

ROWS = 16
HIDDEN, INNER, HEADS, VOCABULARY, LAYERS, EXPERTS = 64, 32, 4, 96, 1, 8


@triton.jit
def experts_kernel(
    x_ptr, w_ptr, out_ptr, rows_ptr, experts_ptr, weights_ptr, num_rows_ptr,
    n, k, num_valid, top_k,
    WEIGHTED: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """out[row] = x[row // top_k] @ w[expert of the block].T, times the row's weight."""
    block, column = tl.program_id(0), tl.program_id(1)
    if block * M >= tl.load(num_rows_ptr):
        return
    rows = tl.load(rows_ptr + block * M + tl.arange(0, M))
    expert = tl.load(experts_ptr + block).to(tl.int64)
    is_row = rows < num_valid
    columns = column * N + tl.arange(0, N)
    inner = tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        at = start + inner
        x = tl.load(
            x_ptr + (rows // top_k)[:, None] * k + at[None, :],
            mask=is_row[:, None] & (at < k)[None, :],
            other=0,
        )
        w = tl.load(
            w_ptr + expert * n * k + columns[None, :] * k + at[:, None],
            mask=(columns < n)[None, :] & (at < k)[:, None],
            other=0,
        )
        total = tl.dot(x, w, total, input_precision="ieee")
    if WEIGHTED:
        total *= tl.load(weights_ptr + rows, mask=is_row, other=0)[:, None]
    mask = is_row[:, None] & (columns < n)[None, :]
    tl.store(out_ptr + rows[:, None] * n + columns[None, :], total, mask=mask)


def in_blocks(chosen):
    """Return rows sorted by expert and padded to blocks, the expert of each block, and how many."""
    flat = chosen.flatten()
    counts = torch.bincount(flat, minlength=EXPERTS)
    blocks = (counts + ROWS - 1) // ROWS
    ends = blocks.cumsum(0) * ROWS
    most = flat.numel() + EXPERTS * (ROWS - 1)
    most = (most + ROWS - 1) // ROWS * ROWS
    order = flat.argsort(stable=True)
    rank = torch.arange(flat.numel(), device=flat.device) - (counts.cumsum(0) - counts)[flat[order]]
    place = (ends - blocks * ROWS)[flat[order]] + rank
    rows = torch.full((most,), flat.numel(), dtype=torch.int32, device=flat.device)
    rows[place] = order.to(torch.int32)
    firsts = torch.arange(most // ROWS, device=flat.device) * ROWS
    experts = torch.searchsorted(ends, firsts, right=True).clamp(max=EXPERTS - 1)
    return rows, experts.to(torch.int32), ends[-1:].to(torch.int32)


def by_kernel(x, chosen, weights, up, down):
    tokens, top_k = chosen.shape
    rows, experts, used = in_blocks(chosen)

    def launch(x, w, top_k, weighted):
        out = torch.zeros(tokens * chosen.shape[1], w.shape[1], device=x.device)
        grid = (len(rows) // ROWS, triton.cdiv(w.shape[1], 32))
        experts_kernel[grid](
            x, w, out, rows, experts, weights.flatten(), used,
            w.shape[1], w.shape[2], tokens * chosen.shape[1], top_k,
            WEIGHTED=weighted, M=ROWS, N=32, K=32,
        )  # fmt: skip
        return out

    gate, value = launch(x, up, top_k, False).chunk(2, dim=-1)
    return launch(F.silu(gate) * value, down, 1, True).view(tokens, top_k, -1).sum(1)


def one_by_one(x, chosen, weights, up, down):
    out = torch.zeros_like(x)
    for expert in range(EXPERTS):
        tokens, places = (chosen == expert).nonzero(as_tuple=True)
        gate, value = (x[tokens] @ up[expert].T).chunk(2, dim=-1)
        tensor = (F.silu(gate) * value) @ down[expert].T
        out.index_add_(0, tokens, tensor * weights[tokens, places, None])
    return out


class Experts(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.router = torch.nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.bias = torch.nn.Parameter(torch.randn(EXPERTS) * 0.1)
        self.up = torch.nn.Parameter(torch.randn(EXPERTS, 2 * INNER, HIDDEN) * 0.2)
        self.down = torch.nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER) * 0.2)
        self.shared = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)

    def choose(self, scores):
        if self.kind == "mixtral":
            weights, chosen = scores.softmax(-1).topk(2)
            return weights / weights.sum(-1, keepdim=True), chosen
        # The best experts of the best groups, by biased scores; weights without the bias.
        scores = scores.sigmoid()
        biased = (scores + self.bias).view(-1, 4, EXPERTS // 4)
        groups = biased.sum(-1).topk(2).indices
        kept = torch.zeros_like(biased[..., 0]).scatter(1, groups, 1.0).bool()
        masked = biased.masked_fill(~kept[..., None], -1e9).flatten(1)
        chosen = masked.topk(3).indices
        weights = scores.gather(1, chosen)
        return 2.5 * weights / weights.sum(-1, keepdim=True), chosen

    def forward(self, x):
        weights, chosen = self.choose(self.router(x))
        result = (by_kernel if x.is_cuda else one_by_one)(x, chosen, weights, self.up, self.down)
        return result if self.kind == "mixtral" else result + self.shared(x)


class Layer(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        # DeepSeek's keys and values come from one narrow vector.
        self.narrow = torch.nn.Linear(HIDDEN, HIDDEN if kind == "mixtral" else 16, bias=False)
        self.queries = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.pairs = torch.nn.Linear(self.narrow.out_features, 2 * HIDDEN, bias=False)
        self.out = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.experts = Experts(kind)

    def forward(self, x):
        y = F.rms_norm(x, (HIDDEN,))
        k, v = self.pairs(self.narrow(y)).chunk(2, dim=-1)
        q, k, v = (item.view(len(x), HEADS, -1).transpose(0, 1) for item in (self.queries(y), k, v))
        y = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        x = x + self.out(y.transpose(0, 1).reshape(len(x), HIDDEN))
        return x + self.experts(F.rms_norm(x, (HIDDEN,)))


class Model(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.head = torch.nn.Parameter(torch.randn(HIDDEN, VOCABULARY))
        self.layers = torch.nn.Sequential(*(Layer(kind) for _ in range(LAYERS)))

    def forward(self, tokens):
        return F.rms_norm(self.layers(self.embedding(tokens)), (HIDDEN,)) @ self.head


@torch.no_grad()
def generate(model, tokens, count):
    for _ in range(count):
        tokens = torch.cat([tokens, model(tokens)[-1:].argmax(-1)])
    return tokens.tolist()


def main(kind, path):
    torch.manual_seed(0)
    model = Model(kind)
    prompt = torch.randint(VOCABULARY, (9,))
    expected = generate(model, prompt, 3)
    result = generate(model.cuda(), prompt.cuda(), 3)
    Path(path).write_text(f"{result == expected} {len(set(result[9:]))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
