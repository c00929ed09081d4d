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
    result = {}
    for lengths in ([4096] * 4, [16384], [8192, 4096, 2048, 2048]):
        ends = torch.tensor([0, *lengths]).cumsum(0).to("cuda", torch.int32)
        value = (q, k, v, ends, ends, max(lengths), max(lengths))
        result[str(lengths)] = timed(lambda argument=value: flash_attn_varlen_func(*argument))
    dense = [item.view(4, 4096, 8, 64) for item in (q, k, v)]
    result["dense"] = timed(lambda: flash_attn_func(*dense))
    # Lengths that only the device knows: sequences are taken as equally long.
    unknown = ends + (q.sum() > 0).int() * 0
    value = (q, k, v, unknown, unknown, 8192, 8192)
    result["unknown"] = timed(lambda: flash_attn_varlen_func(*value))
    q, cache = torch.randn(16, 1, 8, 128, **kind), torch.randn(16, 4096, 8, 128, **kind)
    for length in (1024, 4096):
        lengths = torch.full((16,), length, dtype=torch.int32, device="cuda")
        result[f"cache of {length}"] = timed(
            lambda passed=lengths: flash_attn_with_kvcache(q, cache, cache, cache_seqlens=passed)
        )
    torch.save(result, sys.argv[1])


main()
