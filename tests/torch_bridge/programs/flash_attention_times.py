"""Writes how long calls of flash_attn take on sequences of several lengths.

python flash_attention_times.py FILE
"""

import sys

import torch
from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache


def timed(call):
    call()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # The device is busy for as long as the host needs.
    torch.cuda._sleep(10**7)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def main():
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    q, k, v = (torch.randn(16384, 8, 64, **kind) for _ in range(3))
    found = {}
    for lengths in ([4096] * 4, [16384], [8192, 4096, 2048, 2048]):
        ends = torch.tensor([0, *lengths]).cumsum(0).to("cuda", torch.int32)
        given = (q, k, v, ends, ends, max(lengths), max(lengths))
        found[str(lengths)] = timed(lambda given=given: flash_attn_varlen_func(*given))
    dense = [each.view(4, 4096, 8, 64) for each in (q, k, v)]
    found["dense"] = timed(lambda: flash_attn_func(*dense))
    # Lengths that only the device knows: sequences are taken as equally long.
    unknown = ends + (q.sum() > 0).int() * 0
    given = (q, k, v, unknown, unknown, 8192, 8192)
    found["unknown"] = timed(lambda: flash_attn_varlen_func(*given))
    q, cache = torch.randn(16, 1, 8, 128, **kind), torch.randn(16, 4096, 8, 128, **kind)
    for length in (1024, 4096):
        lengths = torch.full((16,), length, dtype=torch.int32, device="cuda")
        found[f"cache of {length}"] = timed(
            lambda given=lengths: flash_attn_with_kvcache(q, cache, cache, cache_seqlens=given)
        )
    torch.save(found, sys.argv[1])


main()
