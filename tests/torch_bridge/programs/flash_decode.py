"""A query of each sequence against keys of 8 bits in pages, by vLLM's FlashAttention 3."""

import sys

import torch

sys.path.insert(0, sys.argv[1])
import engine._fa3  # noqa: F401

batch, length, heads, kv_heads, size, page = 16, 32768, 16, 8, 128, 256
of = {"device": "cuda", "dtype": torch.float8_e4m3fn}
q = torch.empty(batch, heads, size, **of)
k, v = (torch.empty(batch * length // page, page, kv_heads, size, **of) for _ in "kv")
table = torch.arange(batch * length // page, device="cuda", dtype=torch.int32).view(batch, -1)
ends = torch.arange(batch + 1, device="cuda", dtype=torch.int32)
used = torch.full((batch,), length, device="cuda", dtype=torch.int32)
scale = torch.ones(batch, kv_heads, device="cuda")
torch.ops._vllm_fa3_C.fwd(
    q, k, v, None, None, None, None, ends, None, None, None, used, 1, length, table,
    None, None, None, None, None, scale, scale, scale, size**-0.5, True, -1, -1, 0.0, True,
    None, 0, None, 0, None, 1, 0, None,
)  # fmt: skip
