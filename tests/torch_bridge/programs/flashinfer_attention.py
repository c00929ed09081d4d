"""FlashInfer's attention over pages, compared with plain attention of float32 on the host.

Without data, a decode step's time is written to the file that is named.
"""

import importlib.util
import sys

import torch
from flashinfer.concat_ops import concat_mla_k
from flashinfer.decode import trtllm_batch_decode_with_kv_cache
from flashinfer.prefill import trtllm_batch_context_with_kv_cache
from flashinfer.rope import apply_rope_with_cos_sin_cache_inplace

PAGE, HEADS, KV_HEADS, SIZE = 16, 8, 2, 64
WORKSPACE = torch.empty(1, device="cuda", dtype=torch.uint8)


def plain(q, k, v, scale, left, causal, sinks):
    """Return attention of ``(queries, heads, size)`` to all keys, in float32."""
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    places = torch.arange(len(k) - len(q), len(k))[:, None]
    keys = torch.arange(len(k))
    hidden = torch.zeros(len(q), len(k), dtype=torch.bool)
    if causal:
        hidden |= keys > places
    if left >= 0:
        hidden |= keys < places - left
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks[:, None, None].expand(-1, len(q), 1)), -1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., : len(k)], v)


def check(queries, keys, dtype, layout, left=-1, causal=True, with_sinks=False):
    narrow = dtype == torch.float8_e4m3fn
    count = -(-max(keys) // PAGE)
    shape = (len(keys) * count, KV_HEADS, PAGE, SIZE)
    pages = [torch.randn(shape, dtype=torch.bfloat16).to(dtype) for _ in "kv"]
    table = torch.randperm(len(keys) * count, dtype=torch.int32).view(len(keys), count)
    q = torch.randn(sum(queries), HEADS, SIZE, dtype=torch.bfloat16).to(dtype)
    sinks = torch.randn(HEADS) if with_sinks else None
    ends = torch.tensor([0, *queries]).cumsum(0).int()
    scale, more = SIZE**-0.5, 0.5 if narrow else 1.0
    if layout == "NHD":
        caches = tuple(x.transpose(1, 2).contiguous().cuda() for x in pages)
    else:
        caches = torch.stack(pages, 1).cuda()
    out = torch.empty(q.shape, dtype=torch.bfloat16, device="cuda")
    options = {"window_left": left, "out": out, "kv_layout": layout}
    options["sinks"] = None if sinks is None else sinks.cuda()
    used = torch.tensor(keys, dtype=torch.int32, device="cuda")
    where = (q.cuda(), caches, WORKSPACE, table.cuda(), used)
    if max(queries) == min(queries) <= 4:
        result = trtllm_batch_decode_with_kv_cache(
            *where, max(keys), scale, more, q_len_per_req=queries[0], **options
        )
    else:
        result = trtllm_batch_context_with_kv_cache(
            *where, max(queries), max(keys), scale, more, len(keys), ends.cuda(), ends.cuda(),
            causal=causal, **options,
        )  # fmt: skip
    assert result is out
    for number, length in enumerate(keys):
        rows = slice(ends[number], ends[number + 1])
        k, v = (
            x[table[number].long()].transpose(1, 2).flatten(0, 1)[:length].float() for x in pages
        )
        right = plain(q[rows].float(), k, v, scale, left, causal, sinks) * more
        torch.testing.assert_close(out[rows].cpu().float(), right, rtol=2e-2, atol=2e-3)


def refuses(call, text):
    said = ""
    try:
        call()
    except NotImplementedError as error:
        said = str(error)
    assert text in said, said


def values():
    torch.manual_seed(0)
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        check([1, 1, 1], [5, 40, 16], dtype, "HND")
        check([3, 3], [50, 7], dtype, "NHD", left=4)
        check([20, 33], [20, 100], dtype, "HND", with_sinks=True)
        check([17, 40], [33, 40], dtype, "NHD", left=8)
        check([18, 2], [18, 30], dtype, "HND", causal=False)
    one = torch.ones(1, 1, 8, device="cuda")
    numbers = (one, (one[None], one[None]), WORKSPACE, one[0].int(), one[0, 0, :1].int(), 1)
    for options in ({"backend": "xqa"}, {"mask": one}, {"return_lse": True}, {"bmm1_scale": one}):
        name = next(iter(options))
        refuses(lambda o=options: trtllm_batch_decode_with_kv_cache(*numbers, **o), f"{name}=")
    a, b = torch.randn(32, 64), torch.randn(48, 64)
    fp8 = [x.to(torch.float8_e4m3fn) for x in (a, b)]
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper, bmm_fp8

    scales = [torch.tensor([x], device="cuda") for x in (0.5, 2.0)]
    product = bmm_fp8(fp8[0].cuda()[None], fp8[1].cuda().t()[None], *scales, torch.bfloat16)
    right = fp8[0].float() @ fp8[1].float().t()
    torch.testing.assert_close(product[0].cpu().float(), right, rtol=1e-2, atol=1e-2)
    refuses(BatchDecodeWithPagedKVCacheWrapper, "choose another attention backend")
    assert BatchDecodeWithPagedKVCacheWrapper | None
    nope, rope = torch.randn(5, 2, 4), torch.randn(5, 1, 2)
    k = torch.empty(5, 2, 6, device="cuda")
    concat_mla_k(k, nope.cuda(), rope.cuda())
    assert torch.equal(k.cpu(), torch.cat((nope, rope.expand(-1, 2, -1)), -1))
    angles, heads = torch.rand(7, 2), torch.randn(5, 2, 4)
    turned, places = heads.flatten(1).cuda(), torch.arange(2, 7)
    cache = torch.cat((angles.cos(), angles.sin()), -1).cuda()
    apply_rope_with_cos_sin_cache_inplace(places.cuda(), turned, turned.clone(), 4, cache)
    by = torch.polar(torch.ones(5, 2), angles[places])[:, None]
    right = torch.view_as_real(torch.complex(*heads.chunk(2, -1)) * by).transpose(-1, -2).flatten(1)
    torch.testing.assert_close(turned.cpu(), right)
    # Parts that engines ask for and can do without.
    assert importlib.util.find_spec("flashinfer.comm") is None
    assert importlib.util.find_spec("flashinfer_cubin") is not None


def times(path):
    batch, length, heads, size = 16, 4096, 8, 128
    result = {}
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        shape = (batch * length // PAGE, heads, PAGE, size)
        caches = [torch.empty(shape, dtype=dtype, device="cuda") for _ in "kv"]
        q = torch.empty(batch, 4 * heads, size, dtype=dtype, device="cuda")
        out = torch.empty(q.shape, dtype=torch.bfloat16, device="cuda")
        table = torch.zeros(batch, length // PAGE, dtype=torch.int32, device="cuda")
        used = torch.full((batch,), length, dtype=torch.int32, device="cuda")
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
        # The device is busy for as long as the host needs.
        torch.cuda._sleep(10**7)
        begin.record()
        trtllm_batch_decode_with_kv_cache(
            q, tuple(caches), WORKSPACE, table, used, length, 0.1, out=out
        )
        end.record()
        end.synchronize()
        result[dtype] = begin.elapsed_time(end), 2 * caches[0].nbytes
    torch.save(list(result.values()), path)


if len(sys.argv) > 1:
    times(sys.argv[1])
else:
    values()
