"""Calls what programs import of flash_attn, and compares it with PyTorch's attention on the host.

python flash_attention.py FILE
"""

import importlib.metadata
import importlib.util
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from flash_attn.bert_padding import pad_input, unpad_input
from flash_attn.flash_attn_interface import (
    _flash_attn_backward,
    _flash_attn_forward,
    _wrapped_flash_attn_backward,
    _wrapped_flash_attn_forward,
)
from flash_attn.layers.rotary import (
    RotaryEmbedding,
    apply_rotary_emb,
    apply_rotary_emb_torch,
)
from flash_attn.losses.cross_entropy import CrossEntropyLoss
from flash_attn.ops.activations import swiglu
from flash_attn.ops.layer_norm import dropout_add_layer_norm
from flash_attn.ops.rms_norm import rms_norm
from flash_attn.ops.triton.layer_norm import RMSNorm, layer_norm_fn, rms_norm_fn

HALF = torch.bfloat16


def drawn(*shape, dtype=HALF):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def visible(queries, keys, causal=False, left=-1, right=-1):
    """Which keys each query sees, by its place counted from the end."""
    place = torch.arange(queries)[:, None] + keys - queries
    key = torch.arange(keys)
    right = 0 if causal else right
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if right >= 0:
        seen &= key <= place + right
    if left >= 0:
        seen &= key >= place - left
    return seen, (place - key).abs()


def expected(q, k, v, *, bias=None, scale=None, **places):
    """PyTorch's attention in double precision; queries that see nothing give zeros."""
    q, k, v = (item.detach().cpu().double().transpose(1, 2) for item in (q, k, v))
    leaves = [item.clone().requires_grad_() for item in (q, k, v)]
    seen, distances = visible(q.shape[2], k.shape[2], **places)
    mask = torch.zeros(seen.shape, dtype=torch.double).masked_fill(~seen, -torch.inf)
    mask = mask if bias is None else mask - bias.double().cpu().view(-1, 1, 1) * distances
    tensor = F.scaled_dot_product_attention(
        *leaves, attn_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return tensor.transpose(1, 2), leaves


def close(double, wanted, tolerance=2e-2):
    double = double.detach().cpu().double()
    assert double.shape == wanted.shape
    assert (double - wanted).abs().max() <= tolerance * max(wanted.abs().max().item(), 1.0)


def check_against_pytorch():
    for shape, options in (
        ((2, 40, 40, 4, 4, 64), {}),
        ((2, 40, 40, 4, 4, 64), {"causal": True}),
        ((1, 24, 72, 6, 2, 32), {"causal": True}),
        ((1, 50, 50, 4, 1, 44), {"left": 7, "right": 3}),
        ((2, 33, 33, 4, 2, 64), {"causal": True, "left": 5}),
        ((1, 20, 60, 4, 4, 64), {"causal": True, "bias": torch.tensor([0.5, 0.2, 0.1, 0.0])}),
    ):
        batch, queries, keys, heads, kv_heads, size = shape
        q = drawn(batch, queries, heads, size).requires_grad_()
        k, v = (drawn(batch, keys, kv_heads, size).requires_grad_() for _ in range(2))
        bias: Any = options.pop("bias", None)
        window = (options.get("left", -1), options.get("right", -1))
        result = flash_attn_func(
            q, k, v, causal=options.get("causal", False), window_size=window,
            alibi_slopes=None if bias is None else bias.cuda(),
        )  # fmt: skip
        wanted, leaves = expected(q, k, v, bias=bias, **options)
        close(result, wanted)
        gradient = drawn(*result.shape)
        result.backward(gradient)
        wanted.backward(gradient.cpu().double())
        for item, leaf in zip((q, k, v), leaves, strict=True):
            close(item.grad, leaf.grad.transpose(1, 2))


def check_packed():
    qkv = drawn(2, 30, 3, 4, 64).requires_grad_()
    separate = [item.detach().clone().requires_grad_() for item in qkv.unbind(2)]
    wanted = flash_attn_func(*separate, causal=True)
    wanted.sum().backward()
    qkvpacked_func = flash_attn_qkvpacked_func(qkv, causal=True)
    qkvpacked_func.sum().backward()
    assert torch.equal(qkvpacked_func, wanted)
    assert torch.equal(qkv.grad, torch.stack([item.grad for item in separate], 2))
    kv = qkv.detach()[:, :, 1:]
    assert torch.equal(flash_attn_kvpacked_func(separate[0], kv, causal=True), wanted)


def check_several_lengths():
    lengths = [5, 40, 0, 17]
    ends = torch.tensor([0, 5, 45, 45, 62], dtype=torch.int32, device="cuda")
    q, k, v = (drawn(62, 4, 64).requires_grad_() for _ in range(3))
    varlen_func = flash_attn_varlen_func(q, k, v, ends, ends, 40, 40, causal=True)
    gradient = drawn(*varlen_func.shape)
    varlen_func.backward(gradient)
    begin = 0
    for length in lengths:
        rows = slice(begin, begin + length)
        begin += length
        if length:
            one = [item.detach()[None, rows].requires_grad_() for item in (q, k, v)]
            alone = flash_attn_func(*one, causal=True)
            alone.backward(gradient[None, rows])
            assert torch.equal(varlen_func[rows], alone[0])
            for item, leaf in zip((q, k, v), one, strict=True):
                assert torch.equal(item.grad[rows], leaf.grad[0])
    packed = torch.stack([q, k, v], 1).detach()
    again = flash_attn_varlen_qkvpacked_func(packed, ends, 40, causal=True)
    assert torch.equal(again, varlen_func)
    # Keys in pages: sequences of 40 and 17 keys, of which the last 3 and 2 have queries.
    pages = [drawn(9, 16, 4, 64) for _ in range(2)]
    table = torch.tensor([[7, 2, 5], [1, 8, -1]], dtype=torch.int32, device="cuda")
    q = drawn(5, 4, 64)
    varlen_func = flash_attn_varlen_func(
        q, *pages, torch.tensor([0, 3, 5], dtype=torch.int32, device="cuda"),
        torch.tensor([0, 40, 57], dtype=torch.int32, device="cuda"), 3, 40, causal=True,
        block_table=table,
    )  # fmt: skip
    for rows, used, count in ((slice(0, 3), [7, 2, 5], 40), (slice(3, 5), [1, 8], 17)):
        k, v = (page[used].flatten(0, 1)[None, :count] for page in pages)
        assert torch.equal(varlen_func[rows], flash_attn_func(q[None, rows], k, v, causal=True)[0])


def check_cache():
    lengths = torch.tensor([6, 0, 30], dtype=torch.int32, device="cuda")
    cache = [drawn(3, 48, 2, 64) for _ in range(2)]
    q, new = drawn(3, 2, 4, 64), [drawn(3, 2, 2, 64) for _ in range(2)]
    angles = torch.outer(torch.arange(48.0), 0.1 ** torch.arange(0, 1, 1 / 16)).cuda()
    cos, sin = angles.cos().to(HALF), angles.sin().to(HALF)
    before = [item.clone() for item in cache]
    result, lse = flash_attn_with_kvcache(
        q, *cache, *new, cos, sin, cache_seqlens=lengths, causal=True, rotary_interleaved=False,
        return_softmax_lse=True,
    )  # fmt: skip
    assert lse.shape == (3, 4, 2)
    assert not result.requires_grad
    for number, length in enumerate(lengths.tolist()):
        at = slice(length, length + 2)
        turned = [
            apply_rotary_emb_torch(item[number : number + 1].float(), cos[at], sin[at]).to(HALF)
            for item in (q, new[0])
        ]
        close(cache[0][number, at], turned[1][0].cpu().double())
        assert torch.equal(cache[1][number, at], new[1][number])
        assert torch.equal(cache[0][number, :length], before[0][number, :length])
        held = [item[number : number + 1, : length + 2] for item in cache]
        close(result[number], expected(turned[0], *held, causal=True)[0][0].detach())
    # The same in pages of 16.
    table = torch.arange(9, dtype=torch.int32, device="cuda").view(3, 3).flip(0)
    pages = [item.view(3, 3, 16, 2, 64).flip(0).flatten(0, 1).contiguous() for item in before]
    again = flash_attn_with_kvcache(
        q, *pages, *new, cos, sin, cache_seqlens=lengths, block_table=table, causal=True,
        rotary_interleaved=False,
    )  # fmt: skip
    assert torch.equal(again, result)
    rows = torch.tensor([2, 0, 1], dtype=torch.int32, device="cuda")
    moved = flash_attn_with_kvcache(
        q, *(item[[1, 2, 0]] for item in cache), cache_seqlens=lengths + 2, cache_batch_idx=rows
    )
    plain = flash_attn_with_kvcache(q, *cache, cache_seqlens=lengths + 2)
    assert torch.equal(moved, plain)


def check_closed_forms():
    # Equal keys: the mean of the values that are seen, whatever caps scores.
    v = drawn(1, 8, 2, 64)
    q, k = drawn(1, 8, 2, 64), torch.ones_like(v)
    result = flash_attn_func(q, k, v, causal=True, softcap=5.0)
    counts = torch.arange(1, 9).view(1, 8, 1, 1)
    close(result, v.cpu().double().cumsum(1) / counts)
    # Capped scores, and the log of the sum of their exponentials.
    _, lse, _ = flash_attn_func(q, k, v, softmax_scale=3.0, softcap=2.0, return_attn_probs=True)
    scores = 2 * torch.tanh(3 * q.cpu().double().sum(-1) / 2)
    close(lse, scores.transpose(1, 2) + torch.tensor(8.0).log(), 1e-4)
    # A query that sees no key.
    result, lse, _ = flash_attn_func(
        drawn(1, 4, 2, 64), k[:, :2], v[:, :2], causal=True, return_attn_probs=True
    )
    assert result[0, :2].eq(0).all()
    assert lse[0, :, :2].eq(torch.inf).all()
    assert lse[0, :, 2:].isfinite().all()
    # Dropout keeps the expectation, and its gradient leaves out the same elements.
    torch.manual_seed(1)
    v = torch.ones(1, 256, 2, 64, device="cuda", dtype=HALF, requires_grad=True)
    k = torch.zeros_like(v)
    dropped = flash_attn_func(torch.zeros_like(v), k, v, dropout_p=0.25)
    assert abs(dropped.mean().item() - 1) < 0.02
    assert dropped.std().item() > 0.01
    dropped[:, 0].sum().backward()
    taken = v.grad[0, :, 0, 0].ne(0).float().mean().item()
    assert 0.6 < taken < 0.9
    close(dropped[0, 0, 0, :1], v.grad[0, :, 0, 0].double().sum().cpu()[None], 5e-2)


def check_beside_attention():
    cos, sin = (tensor.cuda() for tensor in (torch.rand(20, 16), torch.rand(20, 16)))
    for interleaved in (False, True):
        x = drawn(2, 20, 3, 48, dtype=torch.float32).requires_grad_()
        y = x.detach().clone().requires_grad_()
        emb = apply_rotary_emb(x, cos, sin, interleaved)
        wanted = apply_rotary_emb_torch(y, cos, sin, interleaved)
        torch.testing.assert_close(emb, wanted)
        gradient = drawn(*x.shape, dtype=torch.float32)
        emb.backward(gradient)
        wanted.backward(gradient)
        torch.testing.assert_close(x.grad, y.grad)
    x = drawn(2, 12, 3, 48)
    shifted = apply_rotary_emb(x, cos, sin, seqlen_offsets=torch.tensor([3, 8]).cuda())
    for number, begin in enumerate((3, 8)):
        at = slice(begin, begin + 12)
        alone = apply_rotary_emb(x[number : number + 1], cos[at], sin[at])
        assert torch.equal(shifted[number], alone[0])
    rows = torch.cat([x[0, :5], x[1]])
    ends = torch.tensor([0, 5, 17], dtype=torch.int32, device="cuda")
    turned = apply_rotary_emb(rows, cos, sin, cu_seqlens=ends, max_seqlen=12)
    assert torch.equal(turned[5:], apply_rotary_emb(x[1:], cos, sin)[0])
    qkv = drawn(2, 12, 3, 4, 48)
    before = qkv.clone()
    rotary = RotaryEmbedding(48, device="cuda")
    assert rotary(qkv) is qkv
    tables = rotary._tables(12, qkv)
    for number in range(2):
        wanted = apply_rotary_emb(before[:, :, number], *tables)
        assert torch.equal(qkv[:, :, number], wanted)
    assert torch.equal(qkv[:, :, 2], before[:, :, 2])

    x, residual = (drawn(6, 64).requires_grad_() for _ in range(2))
    weight, bias = (drawn(64).requires_grad_() for _ in range(2))
    result, total = layer_norm_fn(
        x, weight, bias, residual, eps=1e-5, prenorm=True, residual_in_fp32=True
    )
    wide = [item.detach().cpu().double().requires_grad_() for item in (x, residual, weight, bias)]
    summed = wide[0] + wide[1]
    wanted = F.layer_norm(summed, (64,), wide[2], wide[3], 1e-5)
    close(result, wanted.detach())
    close(total, summed.detach())
    (result.sum() + total.square().sum()).backward()
    (wanted.sum() + summed.square().sum()).backward()
    for item, leaf in zip((x, residual, weight, bias), wide, strict=True):
        close(item.grad, leaf.grad)
    summed, total = dropout_add_layer_norm(x, residual, weight, bias, 0.0, 1e-5, prenorm=True)
    assert torch.equal(summed, result)
    wanted = F.rms_norm(x.detach().cpu().double(), (64,), weight.detach().cpu().double(), 1e-6)
    close(rms_norm(x, weight, 1e-6), wanted)
    close(rms_norm_fn(x, weight), wanted)
    assert RMSNorm(64, device="cuda", dtype=HALF)(x).dtype is HALF

    logits = drawn(10, 32, dtype=torch.float32).requires_grad_()
    same = logits.detach().clone().requires_grad_()
    labels = torch.arange(10, device="cuda")
    labels[3] = -100
    loss = CrossEntropyLoss(label_smoothing=0.1)(logits, labels)
    plain = F.cross_entropy(same, labels, label_smoothing=0.1)
    torch.testing.assert_close(loss, plain)
    loss.backward()
    plain.backward()
    torch.testing.assert_close(logits.grad, same.grad)
    a, b = drawn(4, 8), drawn(4, 8)
    close(swiglu(a, b), (F.silu(a.cpu().double()) * b.cpu().double()))

    mask = torch.tensor([[1, 1, 0], [1, 0, 0]], device="cuda")
    x = drawn(2, 3, 4)
    rows, indices, ends, longest, used = unpad_input(x, mask)
    assert (ends.tolist(), longest, used.tolist()) == ([0, 2, 3], 2, [2, 1])
    assert torch.equal(pad_input(rows, indices, 2, 3), x * mask[..., None])


def check_as_context_parallel_calls_it():
    """The functions below autograd, with the gradients' memory given."""
    q, k, v = (drawn(1, 16, 2, 64).requires_grad_() for _ in range(3))
    options = (0.0, 0.125, True, -1, -1, 0.0, None)
    forward, backward = _wrapped_flash_attn_forward, _wrapped_flash_attn_backward
    assert (forward, backward) == (_flash_attn_forward, _flash_attn_backward)
    out, lse, _, state = _flash_attn_forward(q.detach(), k.detach(), v.detach(), *options, False)
    tensors = [torch.empty_like(item) for item in (q, k, v)]
    gradient = drawn(*out.shape)
    detaches = (item.detach() for item in (q, k, v))
    _flash_attn_backward(gradient, *detaches, out, lse, *tensors, *options, False, rng_state=state)
    flash_attn_func(q, k, v, softmax_scale=0.125, causal=True).backward(gradient)
    for item, result in zip((q, k, v), tensors, strict=True):
        assert torch.equal(item.grad, result)


def check_graph():
    """A replay computes, and takes the time, by the lengths that are there then."""
    lengths = torch.zeros(2, dtype=torch.int32, device="cuda")
    cache = [drawn(2, 8192, 2, 64) for _ in range(2)]
    q = drawn(2, 1, 4, 64)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flash_attn = flash_attn_with_kvcache(q, *cache, cache_seqlens=lengths)
    times = []
    for length in (100, 8000):
        lengths.fill_(length)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The device is busy for as long as the host needs.
        torch.cuda._sleep(10**7)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
        plain = flash_attn_with_kvcache(q, *cache, cache_seqlens=lengths)
        assert torch.equal(flash_attn, plain)
    return times


def check_refusals():
    x = torch.ones(1, 4, 2, 64)
    with pytest.raises(RuntimeError, match="fp16 and bf16"):
        flash_attn_func(x.cuda(), x.cuda(), x.cuda())
    with pytest.raises(RuntimeError, match="at most 256"):
        flash_attn_func(*[drawn(1, 4, 2, 264)] * 3)
    with pytest.raises(RuntimeError, match="must divide"):
        flash_attn_func(drawn(1, 4, 3, 64), *[drawn(1, 4, 2, 64)] * 2)
    with pytest.raises(RuntimeError, match="cache_seqlens"):
        flash_attn_with_kvcache(*[drawn(1, 4, 2, 64)] * 5)
    ends = torch.tensor([0, 4]).cuda()
    with pytest.raises(RuntimeError, match="cu_seqlens_q must have dtype int32"):
        flash_attn_varlen_func(*[drawn(4, 2, 64)] * 3, ends, ends.int(), 4, 4)
    with pytest.raises(RuntimeError, match="cu_seqlens_k must have dtype int32"):
        flash_attn_varlen_func(*[drawn(4, 2, 64)] * 3, ends.int(), ends, 4, 4)
    with pytest.raises(RuntimeError, match="cache_seqlens must have dtype int32"):
        flash_attn_with_kvcache(*[drawn(1, 4, 2, 64)] * 3, cache_seqlens=ends[:1])
    with pytest.raises(NotImplementedError, match="cache_leftpad"):
        flash_attn_with_kvcache(*[drawn(1, 4, 2, 64)] * 3, cache_leftpad=torch.zeros(1).cuda())
    with pytest.raises(ModuleNotFoundError, match=r"no such module, but flash_attn\.bert_padding"):
        import flash_attn.modules.mha  # noqa: F401


def main():
    torch.manual_seed(0)
    assert importlib.util.find_spec("flash_attn") is not None
    assert importlib.metadata.version("flash_attn") == importlib.metadata.version("flash-attn")
    check_against_pytorch()
    check_packed()
    check_several_lengths()
    check_cache()
    check_closed_forms()
    check_beside_attention()
    check_as_context_parallel_calls_it()
    check_refusals()
    torch.save(check_graph(), sys.argv[1])


main()
