# vLLM 0.33's own paged prefill: four unrolled steps in each of two loops, one accumulator of 64 KiB.
# run: kernbench torchrun --machine h100-sxm {file}
# needs: vllm
# expect: ^right: True
# never: exhausted

import sys

sys.path.insert(0, str(__import__("pathlib").Path(__file__).parent))
import torch
import vllm_stubs  # noqa: F401  stubs of vllm, the kernel is the wheel's
from vllm.v1.attention.ops.prefix_prefill import context_attention_fwd

heads, kv_heads, size, block, packed, pages = 4, 2, 128, 16, 8, 40
known, new = [100, 37], [70, 150]
half = torch.float16
k_cache = torch.randn(pages, kv_heads, size // packed, block, packed).to(half)
v_cache = torch.randn(pages, kv_heads, size, block).to(half)
table = torch.randperm(pages)[:32].reshape(2, 16).int()
q = torch.randn(sum(new), heads, size).to(half)
k, v = (torch.randn(sum(new), kv_heads, size).to(half) for _ in range(2))
starts = torch.tensor([0, new[0], sum(new)]).int()
lengths = torch.tensor([a + b for a, b in zip(known, new)]).int()
out = torch.empty(sum(new), heads, size, dtype=half, device="cuda")
one = torch.ones(1, device="cuda")
context_attention_fwd(
    *(item.cuda() for item in (q, k, v)),
    out,
    "auto",
    *(item.cuda() for item in (k_cache, v_cache, table, starts, lengths)),
    int(lengths.max()),
    max(new),
    one,
    one,
)

right, at = True, 0
for index in range(2):
    place = torch.arange(known[index])
    page, rows = table[index][place // block].long(), slice(at, at + new[index])
    keys = k_cache[page, :, :, place % block, :].reshape(known[index], kv_heads, size)
    values = v_cache[page, :, :, place % block]
    keys, values = (
        torch.cat([old, own[rows]]).float().repeat_interleave(heads // kv_heads, 1)
        for old, own in ((keys, k), (values, v))
    )
    scores = torch.einsum("qhd,khd->hqk", q[rows].float(), keys) * size**-0.5
    seen = torch.arange(len(keys))[None] <= known[index] + torch.arange(new[index])[:, None]
    weights = scores.masked_fill(~seen, -1e30).softmax(-1)
    expected = torch.einsum("hqk,khd->qhd", weights, values)
    right = right and bool((out[rows].cpu().float() - expected).abs().max() < 2e-3)
    at += new[index]
print("right:", right)
