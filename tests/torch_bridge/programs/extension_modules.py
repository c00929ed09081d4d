"""Operators of a fake engine, whose shared objects hold schemas alone, against PyTorch's own."""

import ctypes
import importlib
import sys

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch.testing import assert_close

sys.path.insert(0, sys.argv[1])
import engine._C
import engine._fa2
import engine._fa3  # noqa: F401

OPS, FA3 = torch.ops.engine_ops, torch.ops._vllm_fa3_C
HALF = {"device": "cuda", "dtype": torch.bfloat16}
CLOSE = {"atol": 3e-2, "rtol": 2e-2}
torch.manual_seed(0)
x, weight = torch.randn(6, 64, **HALF), torch.rand(64, **HALF)


def like(result, wanted):
    assert_close(result.float().cpu(), wanted.float().cpu(), **CLOSE)


def norms_and_activations():
    out, residual = torch.empty_like(x), torch.randn_like(x)
    OPS.rms_norm(out, x, weight, 1e-6)
    like(out, F.rms_norm(x.cpu().float(), (64,), weight.cpu().float(), 1e-6))
    added, total = x.clone(), x.cpu().float() + residual.cpu().float()
    OPS.fused_add_rms_norm(added, residual, weight, 1e-6)
    like(residual, total)
    like(added, F.rms_norm(total, (64,), weight.cpu().float(), 1e-6))
    gated = torch.empty(6, 32, **HALF)
    OPS.silu_and_mul(gated, x)
    first, second = x.cpu().float().chunk(2, -1)
    like(gated, F.silu(first) * second)


def quantized():
    largest = torch.finfo(torch.float8_e4m3fn).max
    q = torch.empty(6, 64, device="cuda", dtype=torch.float8_e4m3fn)
    scales = torch.empty(6, 1, device="cuda")
    OPS.dynamic_per_token_scaled_fp8_quant(q, x, scales, None)
    like(scales, x.cpu().float().abs().amax(1, keepdim=True) / largest)
    assert_close(q.cpu().float() * scales.cpu(), x.cpu().float(), atol=0.2, rtol=0.07)
    w = (torch.randn(64, 32, device="cuda") / 8).t().contiguous().t().to(torch.float8_e4m3fn)
    of_columns, out = torch.rand(1, 32, device="cuda"), torch.empty(6, 32, **HALF)
    OPS.cutlass_scaled_mm(out, q, w, scales, of_columns, None)
    wide = (q.cpu().float() * scales.cpu()) @ (w.cpu().float() * of_columns.cpu())
    like(out, wide)


def attention():
    """Three sequences over pages of 16, one with a single query; rotated and written to them."""
    lengths_q, lengths_k = [5, 1, 9], [20, 33, 9]
    pages, heads, kv_heads, size = 8, 4, 2, 32
    table = torch.tensor([[3, 1, 0], [0, 2, 4], [5, 0, 0]], device="cuda", dtype=torch.int32)
    caches = [torch.zeros(pages, 16, kv_heads, size, **HALF) for _ in "kv"]
    slots, k, v = [], torch.randn(62, kv_heads, size), torch.randn(62, kv_heads, size)
    for row, length in zip(table.tolist(), lengths_k, strict=True):
        slots += [row[at // 16] * 16 + at % 16 for at in range(length)]
    slots = torch.tensor(slots, device="cuda")
    scale = torch.ones(1, device="cuda")
    new = k.to(**HALF), v.to(**HALF)
    OPS.reshape_and_cache_flash(*new, *caches, slots, "auto", scale, scale)
    ends = torch.tensor([0, 5, 6, 15], device="cuda", dtype=torch.int32)
    used = torch.tensor(lengths_k, device="cuda", dtype=torch.int32)
    q = torch.randn(15, heads, size, **HALF)
    metadata = FA3.get_scheduler_metadata(
        3, 9, 33, heads, kv_heads, size, size, torch.bfloat16, used, ends, None, None, None, None,
        16, 0, True, -1, -1, False, 0, None, 0,
    )  # fmt: skip
    result, *_ = FA3.fwd(
        q, *caches, None, None, None, None, ends, None, None, None, used, 9, 33, table,
        None, None, None, None, None, None, None, None, size**-0.5, True, -1, -1, 0.0, True,
        metadata, 0, None, 0, None, 1, 0, None,
    )  # fmt: skip
    at_q = at_k = 0
    for num_q, num_k in zip(lengths_q, lengths_k, strict=True):
        rows, keys = slice(at_q, at_q + num_q), slice(at_k, at_k + num_k)
        mask = torch.ones(num_q, num_k, dtype=torch.bool).tril(num_k - num_q)
        parts = (q.cpu()[rows], *(item.cpu()[keys] for item in new))
        wanted = F.scaled_dot_product_attention(
            *(part.float().transpose(0, 1) for part in parts), attn_mask=mask, enable_gqa=True
        )
        like(result[rows], wanted.transpose(0, 1))
        at_q, at_k = at_q + num_q, at_k + num_k
    angles = torch.arange(64)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
    table = torch.cat((angles.cos(), angles.sin()), -1).to("cuda")
    positions = torch.arange(15, device="cuda")
    turned = q.clone().flatten(1)
    OPS.rotary_embedding(positions, turned, None, size, table, False)
    as_complex = torch.view_as_complex(q.cpu().float().unflatten(-1, (-1, 2)).contiguous())
    turns = torch.polar(torch.ones(15, size // 2), angles[:15])
    like(turned, torch.view_as_real(as_complex * turns[:, None]).flatten(1))


def parts_of_attention():
    """Keys in two parts, each attended to by itself, merged to attention over all of them."""
    q, k, v = (torch.randn(6, 2, 32, **HALF) for _ in "qkv")
    ends_q = torch.tensor([0, 6], device="cuda", dtype=torch.int32)

    def over(keys):
        ends_k = torch.tensor([0, keys.stop - keys.start], device="cuda", dtype=torch.int32)
        return torch.ops._vllm_fa2_C.varlen_fwd(
            q, k[keys], v[keys], None, ends_q, ends_k, None, None, None, None, 6, 6, 0.0,
            32**-0.5, False, False, -1, -1, 0.0, False, 0, None,
        )  # fmt: skip

    (first, first_lse), (second, second_lse) = over(slice(0, 4)), over(slice(4, 6))
    out, lse = torch.empty_like(first), torch.empty_like(first_lse)
    OPS.merge_attn_states(out, lse, first, first_lse, second, second_lse, None, None)
    whole, whole_lse = over(slice(0, 6))
    like(out, whole)
    like(lse, whole_lse)
    heads = (item.cpu().float().transpose(0, 1) for item in (q, k, v))
    like(whole, F.scaled_dot_product_attention(*heads).transpose(0, 1))


def tables_and_caches():
    ids, rows = torch.tensor([3, 9, 12], device="cuda"), torch.randn(8, 64, **HALF)
    out = torch.empty(3, 64, **HALF)
    OPS.vocab_parallel_embedding(out, ids, rows, 8, 16, 0, 20, 20)
    like(out, torch.stack((torch.zeros(64), *(rows.cpu().float()[number] for number in (1, 4)))))
    cache, scale = torch.zeros(3, 4, 24, **HALF), torch.ones(1, device="cuda")
    latent, rotary = torch.randn(5, 16, **HALF), torch.randn(5, 8, **HALF)
    slots = torch.tensor([8, 9, 10, 11, 1], device="cuda")
    OPS.concat_and_cache_mla(latent, rotary, cache, slots, "auto", scale)
    tensor = torch.empty(5, 24, **HALF)
    numbers = {"device": "cuda", "dtype": torch.int32}
    OPS.gather_and_maybe_dequant_cache(
        cache, tensor, torch.tensor([[2, 0]], **numbers), torch.tensor([0, 5], **numbers),
        torch.zeros(5, **numbers), 5, "auto", scale, None,
    )  # fmt: skip
    like(tensor[:4], torch.cat((latent, rotary), 1)[:4])
    assert not tensor[4].any()  # the first place of page 0, which nobody wrote


def scores():
    logits = torch.randn(3, 16, device="cuda")
    penalized, seen = logits.clone(), torch.rand(3, 16, device="cuda") > 0.5
    by = torch.tensor([1.0, 2.0, 3.0], device="cuda")
    OPS.apply_repetition_penalties_(penalized, seen, torch.zeros_like(seen), by)
    for row, (now, before) in enumerate(zip(penalized.tolist(), logits.tolist(), strict=True)):
        for x, y, was in zip(now, before, seen[row].tolist(), strict=True):
            factor = (1 + row) ** (-1 if y > 0 else 1) if was else 1
            assert abs(x - y * factor) < 1e-5
    ends = torch.tensor([16, 2, 5], device="cuda", dtype=torch.int32)
    starts, places = torch.zeros_like(ends), torch.empty(3, 4, device="cuda", dtype=torch.int32)
    OPS.top_k_per_row_prefill(logits, starts, ends, places, 3, 16, 1, 4)
    for row, end in zip(range(3), ends.tolist(), strict=True):
        best = logits[row, :end].cpu().argsort(descending=True)[:4].tolist()
        assert places[row].tolist() == best + [-1] * (4 - len(best))


def experts():
    tokens, count, chosen, block = 12, 4, 2, 16
    scores = torch.randn(tokens, count, device="cuda")
    weights = torch.empty(tokens, chosen, device="cuda")
    ids, places = (torch.empty(tokens, chosen, device="cuda", dtype=torch.int32) for _ in "ab")
    OPS.topk_softmax(weights, ids, places, scores, True, None, None)
    numbers = {"device": "cuda", "dtype": torch.int32}
    rows, of_blocks = (
        torch.empty(tokens * chosen + count * block, **numbers),
        torch.empty(6, **numbers),
    )
    total = torch.empty(1, **numbers)
    OPS.moe_align_block_size(ids, count, block, rows, of_blocks, total, None, None)
    # Without data, too: experts are then chosen evenly.
    flat = ids.flatten().tolist()
    order = rows[: int(total)].view(-1, block).tolist()
    for expert, block_rows in zip(of_blocks.tolist(), order, strict=False):
        assert all(flat[row] == expert for row in block_rows if row < len(flat))
    assert sorted(row for item in order for row in item if row < len(flat)) == list(
        range(len(flat))
    )
    if not HAS_DATA:
        # 16 tokens that choose 8 of 128 experts alone reach 82 of them, and in turn all.
        many = torch.empty(16, 8, **numbers)
        OPS.topk_softmax(
            many.float(), many, many.clone(), torch.randn(16, 128, device="cuda"), True, None, None
        )
        assert all(len(set(row)) == 8 for row in many.tolist())
        assert 72 <= len(set(many.flatten().tolist())) <= 92
    if not weights.is_meta and HAS_DATA:
        best = scores.cpu().softmax(-1).topk(chosen)
        assert ids.tolist() == best.indices.tolist()
        like(weights, best.values / best.values.sum(-1, keepdim=True))


@triton.jit
def count_blocks(of_blocks, total, out, block: tl.constexpr):
    at = tl.program_id(0)
    if at * block >= tl.load(total):
        return
    if tl.load(of_blocks + at) >= 0:
        tl.atomic_add(out, 1)


def experts_in_a_graph():
    """Kernels that decide by choices are captured, one after another: replays choose the same."""
    tokens, count, chosen, block = 2, 64, 4, 16
    scores = torch.randn(tokens, count, device="cuda")
    numbers = {"device": "cuda", "dtype": torch.int32}

    def launch(is_sorted):
        weights = torch.empty(tokens, chosen, device="cuda")
        ids, places = (torch.empty(tokens, chosen, **numbers) for _ in "ab")
        OPS.topk_softmax(weights, ids, places, scores, True, None, None)
        rows, of_blocks = torch.empty(1024, **numbers), torch.empty(64, **numbers)
        if is_sorted:
            total = torch.empty(1, **numbers)
            OPS.moe_align_block_size(ids, count, block, rows, of_blocks, total, None, None)
        else:
            of_blocks, total = ids.view(-1), torch.full((1,), 3 * block, **numbers)
        for _ in range(2):
            count_blocks[(of_blocks.numel(),)](of_blocks, total, out, block)

    out = torch.zeros(1, **numbers)
    for is_sorted in (True, False):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch(is_sorted)
        out.zero_()
        graph.replay()
        if HAS_DATA:
            blocks = len(set(scores.cpu().topk(chosen).indices.flatten().tolist()))
            assert out.item() == 2 * (blocks if is_sorted else 3)


@triton.jit
def add(a, b, out):
    at = tl.program_id(0)
    tl.store(out + at, tl.load(a + at) + tl.load(b + at))


def memory_of_both():
    host = torch.zeros(8, dtype=torch.int32).pin_memory()
    view = OPS.get_cuda_view_from_cpu_tensor(host[2:])
    assert view.is_cuda
    assert view.shape == (6,)
    host[3] = 7
    assert view.tolist() == [0, 7, 0, 0, 0, 0]
    # A kernel tells two views apart, without data, too.
    other, out = OPS.get_cuda_view_from_cpu_tensor(torch.full((6,), 3, dtype=torch.int32)), view + 0
    add[(6,)](view, other, out)
    assert out.tolist() == [3, 10, 3, 3, 3, 3]
    view.add_(1)
    torch.cuda.synchronize()
    assert host.tolist() == [0, 0, 1, 8, 1, 1, 1, 1]


def driver():
    library = ctypes.CDLL("libnvidia-ml.so.1")
    number, handle, name = ctypes.c_uint(), ctypes.c_void_p(), ctypes.create_string_buffer(64)
    assert library.nvmlInit_v2() == 0
    assert library.nvmlDeviceGetCount_v2(ctypes.byref(number)) == 0
    assert number.value == torch.cuda.device_count()
    assert library.nvmlDeviceGetHandleByIndex_v2(number.value, ctypes.byref(handle)) != 0
    assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
    assert library.nvmlDeviceGetName(handle, name, 64) == 0
    # By this name engines find their tables for the device.
    assert name.value.decode() == torch.cuda.get_device_name(0) == "NVIDIA H100 80GB HBM3"
    assert library.nvmlDeviceGetNvLinkState(handle, 0, ctypes.byref(number)) == 3  # not supported
    runtime = ctypes.CDLL("libcudart.so.13")
    assert runtime.cudaDeviceSynchronize() == 0
    refused(lambda: runtime.cudaMalloc(ctypes.byref(handle), 8), "cudaMalloc of libcudart")


def refused(call, words, kind=NotImplementedError):
    with pytest.raises(kind, match=words):
        call()


def mistakes():
    lacks = "engine_ops.never_defined: kernbench has no definition of this operator of engine._C"
    refused(lambda: OPS.never_defined(x), f"{lacks}.*register a kernel")
    refused(lambda: OPS.moe_sum(x, x, None, None, 3), "moe_sum with more=3")
    refused(lambda: importlib.import_module("engine.plain"), "no operators", ModuleNotFoundError)


HAS_DATA = sys.argv[2] == "data"
if HAS_DATA:
    norms_and_activations()
    quantized()
    attention()
    parts_of_attention()
    tables_and_caches()
    scores()
experts()
experts_in_a_graph()
memory_of_both()
driver()
mistakes()
