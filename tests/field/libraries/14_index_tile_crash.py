# Causal attention over a paged cache, as in a prefill of vLLM's, with an empty last block.
# run: kernbench torchrun --machine h100-sxm {file}
# expect: ok, largest difference 0\.0\d*

import torch
import triton
import triton.language as tl


@triton.jit
def attention(
    q,
    kc,
    vc,
    table,
    length,
    o,
    s0,
    s1,
    T: tl.constexpr,
    D: tl.constexpr,
    BQ: tl.constexpr,
    G: tl.constexpr,
):
    block = tl.program_id(0)
    head = tl.program_id(1)
    n = tl.load(length)
    d = tl.arange(0, D)
    m = tl.arange(0, BQ * G)
    row = block * BQ + m // G
    rows = row[:, None] * (G * 2 * D) + (head * G + m % G)[:, None] * D + d[None, :]
    inside = (row < n)[:, None]
    query = tl.load(q + rows, mask=inside, other=0.0)
    total = tl.zeros([BQ * G, D], tl.float32)
    end = tl.minimum((block + 1) * BQ, n)
    for j in range(tl.cdiv(end, T)):
        at = j * T + tl.arange(0, T)
        page = tl.load(table + at // 16).to(tl.int64)
        k = tl.load(
            kc + (page[None, :] * s0 + head * D + d[:, None] + (at % 16)[None, :] * s1),
            mask=(at < end)[None, :],
            other=0.0,
        )
        v = tl.load(
            vc + (page[:, None] * s0 + head * D + d[None, :] + (at % 16)[:, None] * s1),
            mask=(at < end)[:, None],
            other=0.0,
        )
        score = tl.dot(query, k)
        score = tl.where(at[None, :] <= row[:, None], score, 0.0)
        total += tl.dot(score.to(v.dtype), v)
    tl.store(o + rows, total, mask=inside)


n, D = 1024, 128
kc = torch.randn(n // 16, 16, 2, D, device="cuda").bfloat16()
vc = torch.randn_like(kc)
q = torch.randn(n, 8, D, device="cuda").bfloat16()
o = torch.zeros(n, 8, D, device="cuda")
table = torch.arange(1 + n // 16, device="cuda", dtype=torch.int32)
length = torch.tensor([n], device="cuda", dtype=torch.int32)
attention[(n // 4 + 1, 2)](
    q, kc, vc, table, length, o, kc.stride(0), kc.stride(1), T=32, D=D, BQ=4, G=4
)
heads = torch.arange(8, device="cpu") // 4
keys, values = (item.cpu().float().reshape(n, 2, D)[:, heads] for item in (kc, vc))
scores = torch.einsum("qhd,khd->hqk", q.cpu().float(), keys).tril()
right = torch.einsum("hqk,khd->qhd", scores.bfloat16().float(), values)
difference = ((o.cpu() - right).abs().max() / right.abs().max()).item()
print(f"ok, largest difference {difference:.4f}")
