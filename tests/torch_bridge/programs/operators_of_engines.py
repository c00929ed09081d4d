"""Operators of engines against their formats, computed here number by number or by PyTorch."""

import importlib.util
import sys

import torch
import torch.nn.functional as F
from torch.testing import assert_close

sys.path.insert(0, sys.argv[1])
import engine_of_many._C
import engine_of_many._gemm
import engine_of_many._mla  # noqa: F401

# As SGLang does: by the path of the file.
_path = f"{sys.argv[1]}/engine_of_many/common_ops.abi3.so"
_spec = importlib.util.spec_from_file_location("common_ops", _path)
assert _spec is not None
assert _spec.loader is not None
_spec.loader.exec_module(importlib.util.module_from_spec(_spec))

OPS, MLA = torch.ops.engine_more, torch.ops.engine_mla
HALF = {"device": "cuda", "dtype": torch.float16}
NUMBERS = {"device": "cuda", "dtype": torch.int32}
FP8 = torch.float8_e4m3fn
torch.manual_seed(0)


def like(result, wanted, atol=2e-2, rtol=1e-2):
    assert_close(result.cpu().double(), wanted.cpu().double(), atol=atol, rtol=rtol)


def words(numbers, bits):
    """Pack the numbers of a last dim, one after another in 32 bits."""
    item = 32 // bits
    tensor = torch.zeros(*numbers.shape[:-1], numbers.shape[-1] // item, dtype=torch.int64)
    for at in range(item):
        tensor |= numbers[..., at::item].long() << bits * at
    return (tensor & 0xFFFFFFFF).where(tensor < 1 << 31, tensor - (1 << 32)).int()


def activations():
    x = torch.randn(5, 32, **HALF)
    wide = x.cpu().double()
    first, second = wide.chunk(2, -1)
    for name, how, wanted in (
        ("gelu_new", (), F.gelu(wide, approximate="tanh")),
        ("gelu_quick", (), wide * torch.sigmoid(1.702 * wide)),
        ("relu_squared", (), wide.clamp(min=0) ** 2),
        ("fatrelu_and_mul", (0.3,), torch.where(first > 0.3, first, 0) * second),
        (
            "silu_and_mul_with_clamp",
            (0.8, 1.7, 1.0),
            first.clamp(max=0.8)
            * torch.sigmoid(1.7 * first.clamp(max=0.8))
            * (second.clamp(-0.8, 0.8) + 1),
        ),
        (
            "situ_and_mul",
            (2.0, 3.0),
            2 * torch.tanh(first / 2) * torch.sigmoid(first) * 3 * torch.tanh(second / 3),
        ),
        ("mul_and_silu", (), first * F.silu(second)),
    ):
        out = torch.empty(wanted.shape, **HALF)
        getattr(OPS, name)(out, x, *how)
        like(out, wanted)


def kind(bits, bias=0, exponent=0, mantissa=None):
    """The number of a ScalarType: exponent, mantissa, sign and bias, from the lowest bits."""
    return (
        exponent | (bits if mantissa is None else mantissa) << 8 | bool(exponent) << 16 | bias << 17
    )


def fragments(numbers, bits):
    """Marlin's order by the PTX ISA: each thread's parts of B in ``mma.m16n8k16``."""
    k, n = numbers.shape
    inside = {4: (0, 2, 4, 6, 1, 3, 5, 7), 8: (0, 2, 1, 3)}[bits]
    rows = []
    for tile in range(k // 16):
        row = []
        for column in range(0, n, 64):
            for thread in range(32):
                for block in range(4):
                    held = [
                        numbers[16 * tile + at, column + 16 * block + 8 * half + thread // 4]
                        for half in range(2)
                        for at in (2 * (thread % 4) + more for more in (0, 1, 8, 9))
                    ]
                    for at in range(0, 8, len(inside)):
                        row += [held[at + item] for item in inside]
        rows.append(row)
    return words(torch.tensor(rows), bits)


def in_order(scales, single):
    """Marlin's order of scales, as vLLM's layers write them."""
    if single:
        order = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
    else:
        order = [i + 8 * j for i in range(8) for j in range(8)]
    return scales.reshape(-1, len(order))[:, order].reshape(scales.shape)


def packed():
    k, n, group = 64, 128, 32
    x = torch.randn(3, k, **HALF)
    for bits in (4, 8):
        numbers = torch.randint(1 << bits, (k, n))
        scales = (torch.rand(k // group, n) / (1 << bits)).half()
        zeros = torch.randint(1, 1 << bits, (k // group, n))
        of_rows, of_zeros = scales.repeat_interleave(group, 0), zeros.repeat_interleave(group, 0)
        with_zeros = ((numbers - of_zeros) * of_rows.double()).half().double()
        centered = ((numbers - (1 << bits - 1)) * of_rows.double()).half().double()
        gptq = words(numbers.t(), bits).t().contiguous().cuda()
        wide = x.cpu().double()
        gptq_gemm = OPS.gptq_gemm(
            x, gptq, words(zeros - 1, bits).cuda(), scales.cuda(), False, False, bits
        )
        like(gptq_gemm, wide @ with_zeros)
        marlin = OPS.gptq_marlin_repack(gptq, k, n, bits, False)
        assert torch.equal(marlin.cpu(), fragments(numbers, bits))
        space = torch.zeros(128, **NUMBERS)

        def multiplied(scales, zeros, number, bias=None, marlin=marlin, space=space):
            return OPS.marlin_gemm(
                x, None, marlin, bias, scales.cuda(), None, None, zeros, space, number, 3, n, k,
                False, True, False,
            )  # fmt: skip

        centered_kind = kind(bits, 1 << bits - 1)
        like(multiplied(in_order(scales, False), None, centered_kind), wide @ centered)
        bias = torch.randn(n).half()
        gptq_gemm = multiplied(
            in_order(scales, False), None, centered_kind, in_order(bias, True).cuda()
        )
        like(gptq_gemm, wide @ centered + bias.double())
        one = scales[:1]
        of_columns = ((numbers - (1 << bits - 1)) * one.double()).half().double()
        like(multiplied(in_order(one, True), None, centered_kind), wide @ of_columns)
        inside = {4: (0, 2, 4, 6, 1, 3, 5, 7), 8: (0, 2, 1, 3)}[bits]
        ordered = in_order(zeros, False).reshape(-1, len(inside))[:, inside].reshape(zeros.shape)
        result = multiplied(in_order(scales, False), words(ordered, bits).cuda(), kind(bits))
        like(result, wide @ with_zeros)
        prepacked = OPS.machete_prepack_B(gptq, torch.float16, centered_kind, None)
        gptq_gemm = OPS.machete_mm(
            x, prepacked, centered_kind, None, scales.cuda(), None, group, None, None, None
        )
        like(gptq_gemm, wide @ centered)
        if bits == 4:
            order = (0, 2, 4, 6, 1, 3, 5, 7)
            awq = [
                words(number.unflatten(1, (-1, 8))[:, :, order].flatten(1), 4).cuda()
                for number in (numbers, zeros)
            ]
            like(OPS.awq_gemm(x, awq[0], scales.cuda(), awq[1], 8), wide @ with_zeros)
            like(OPS.awq_dequantize(awq[0], scales.cuda(), awq[1], 0, 0, 0), with_zeros)
            assert torch.equal(OPS.awq_marlin_repack(awq[0], k, n, 4, False), marlin)
    # FP8 weights: the layer gives its scales what the conversion leaves out of exponents.
    weight = (torch.randn(k, n) / 8).to(FP8)
    of_bytes = words(weight.view(torch.uint8).t(), 8).t().contiguous().cuda()
    marlin = OPS.gptq_marlin_repack(of_bytes, k, n, 8, False)
    scales = (torch.rand(1, n) + 0.5).half()
    gptq_gemm = OPS.marlin_gemm(
        x, None, marlin, None, in_order(scales * 256, True).cuda(), None, None, None, space,
        kind(8, 0, 4, 3), 3, n, k, False, True, False,
    )  # fmt: skip
    like(gptq_gemm, x.cpu().double() @ (weight.double() * scales.double()))


def experts():
    tokens, count, chosen, n, k = 10, 4, 2, 64, 128
    ids = torch.stack([torch.randperm(count)[:chosen] for _ in range(tokens)])
    weights = torch.rand(tokens, chosen)
    rows = torch.randn(tokens, k, **HALF)
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    places = torch.empty(tokens * chosen, k, **HALF)
    firsts = torch.empty(count + 1, device="cuda", dtype=torch.int64)
    inverse, source = (
        torch.empty(tokens, chosen, **NUMBERS),
        torch.empty(tokens * chosen, **NUMBERS),
    )
    numbers = torch.arange(tokens * chosen).view(tokens, chosen).int().cuda()
    OPS.moe_permute(
        rows, ids.int().cuda(), numbers, None, count, count, chosen, places, firsts, inverse, source
    )
    assert torch.equal(source.cpu().long(), order)
    assert torch.equal(places.cpu(), rows.cpu()[order // chosen])
    assert firsts.tolist() == [int((flat < index).sum()) for index in range(count + 1)]
    summed = torch.empty_like(rows)
    OPS.moe_unpermute(places, weights.cuda(), inverse, firsts, chosen, summed)
    like(summed, rows.cpu().double() * weights.double().sum(1, keepdim=True))

    # Products of FP8 rows, sorted by expert.
    data = [torch.empty(count + 1, **NUMBERS), *(torch.empty(count, 3, **NUMBERS) for _ in "12")]
    maps = [torch.empty(tokens * chosen, **NUMBERS) for _ in "ab"]
    OPS.get_cutlass_moe_mm_data(ids.int().cuda(), *data, *maps, count, n, k, None, True)
    counts = flat.bincount(minlength=count).tolist()
    assert data[1].tolist() == [[count, 2 * n, k] for count in counts]
    assert data[2].tolist() == [[count, k, n] for count in counts]
    a, b = torch.randn(tokens, k).to(FP8), (torch.randn(count, n, k) / 8).to(FP8)
    of_rows, of_columns = torch.rand(tokens * chosen, 1), torch.rand(count, n, 1)
    by_expert = a[maps[0].cpu().long()]
    out, strides = torch.empty(tokens * chosen, n, **HALF), torch.full((count,), k, **NUMBERS)
    sizes = torch.tensor([[count, n, k] for count in counts], **NUMBERS)
    OPS.cutlass_moe_mm(
        out, by_expert.cuda(), b.cuda(), of_rows.cuda(), of_columns.cuda(), data[0][:-1], sizes,
        strides, strides, strides, True, True,
    )  # fmt: skip
    wide = [
        (by_expert[at].double() @ b[flat[row]].double().t())
        * of_rows[at]
        * of_columns[flat[row], :, 0]
        for at, row in enumerate(order.tolist())
    ]
    like(out, torch.stack(wide))
    assert torch.equal(maps[1].cpu().long(), order.argsort())

    # Marlin's: blocks of one expert each, results at the places of choices.
    block = 16
    ordered, of_blocks = (
        torch.empty(tokens * chosen + count * block, **NUMBERS),
        torch.empty(6, **NUMBERS),
    )
    total = torch.empty(1, **NUMBERS)
    OPS.moe_align_block_size(ids.int().cuda(), count, block, ordered, of_blocks, total, None, None)
    numbers = torch.randint(16, (count, k, n))
    scales = (torch.rand(count, 1, n) / 16).half()
    marlin = torch.stack([fragments(number, 4) for number in numbers]).cuda()
    space = torch.zeros(128, **NUMBERS)
    permuted = torch.stack([in_order(scale, True) for scale in scales]).cuda()
    marlin_gemm = OPS.moe_wna16_marlin_gemm(
        rows, None, marlin, None, permuted, None, None, None, space, ordered, of_blocks, total,
        weights.cuda(), block, chosen, True, kind(4, 8), tokens, n, k, False, True, False, -1, -1,
        -1,
    )  # fmt: skip
    centered = ((numbers - 8) * scales.double()).half().double()
    wide = [
        rows[at // chosen].cpu().double() @ centered[expert] * weights.flatten()[at]
        for at, expert in enumerate(flat.tolist())
    ]
    like(marlin_gemm, torch.stack(wide))
    held = torch.tensor([3, 0, 17, 16], **NUMBERS)
    ordered, of_blocks = torch.empty(4 * 32, **NUMBERS), torch.empty(8, **NUMBERS)
    OPS.batched_moe_align_block_size(20, block, held, ordered, of_blocks, total)
    assert total.tolist() == [4 * block]
    assert of_blocks.tolist() == [0, 2, 2, 3, -1, -1, -1, -1]
    assert [item for item in ordered.tolist() if item < 80] == [
        20 * expert + row for expert, number in enumerate((3, 0, 17, 16)) for row in range(number)
    ]
    scores = torch.randn(tokens, count, device="cuda")
    result, chosen_ids = (
        torch.empty(tokens, chosen, device="cuda"),
        torch.empty(tokens, chosen, **NUMBERS),
    )
    OPS.topk_softplus_sqrt(
        result, chosen_ids, torch.empty_like(chosen_ids), scores, True, 2.5, None, None, None, None
    )
    best = F.softplus(scores.cpu().double()).sqrt().topk(chosen)
    like(result, best.values / best.values.sum(1, keepdim=True) * 2.5)
    assert torch.equal(chosen_ids.cpu().long(), best.indices)


def caches():
    scale = torch.full((1,), 0.5, device="cuda")
    keys, values = torch.randn(4, 2, 32, **HALF), torch.randn(4, 2, 32, **HALF)
    slots = torch.tensor([5, 0, -1, 7], device="cuda")
    for name, dtype in (("fp8", FP8), ("fp8_e5m2", torch.float8_e5m2)):
        pages = [torch.zeros(2, 4, 2, 32, device="cuda", dtype=torch.uint8) for _ in "kv"]
        OPS.reshape_and_cache_flash(keys, values, *pages, slots, name, scale, scale)
        for page, new in zip(pages, (keys, values), strict=True):
            wanted = (new.cpu().double() * 2).to(dtype).double()
            flatten = page.cpu().view(dtype).double().flatten(0, 1)
            assert torch.equal(flatten[[5, 0, 7]], wanted[[0, 1, 3]])
            assert not flatten[[1, 2, 3, 4, 6]].any()
        back = torch.empty(2, 4, 2, 32, **HALF)
        OPS.convert_fp8(back, pages[0], 0.5, name)
        like(back.flatten(0, 1)[[5, 0, 7]], keys[[0, 1, 3]], atol=0.3, rtol=0.13)
    angles = torch.randn(16, 4)
    table = torch.cat((angles.cos(), angles.sin()), 1).half().cuda()
    positions = torch.tensor([3, 1, 0, 9], device="cuda")
    q_pe, k_pe, latent = (torch.randn(4, *shape, **HALF) for shape in ((2, 8), (8,), (16,)))
    cache, turned = torch.zeros(2, 4, 24, **HALF), [q_pe.clone(), k_pe.clone()]
    OPS.concat_and_cache_mla_rope_fused(
        positions, *turned, latent, table, False, slots, cache, "auto", scale
    )
    turns = torch.polar(torch.ones(16, 4), angles)[positions.cpu()]
    for flatten, x in zip(turned, (q_pe, k_pe.unsqueeze(1)), strict=True):
        pairs = torch.view_as_complex(x.cpu().float().unflatten(-1, (-1, 2)).contiguous())
        like(flatten.view(x.shape), torch.view_as_real(pairs * turns[:, None]).flatten(-2))
    stored = torch.cat((latent, turned[1]), 1).cpu()
    assert torch.equal(cache.flatten(0, 1)[[5, 0, 7]].cpu(), stored[[0, 1, 3]])
    gathered = torch.empty(6, 24, **HALF)
    OPS.cp_gather_cache(
        cache, gathered, torch.tensor([[1, 0], [0, 1]], **NUMBERS),
        torch.tensor([0, 4, 6], **NUMBERS), 2, torch.tensor([0, 4], **NUMBERS),
    )  # fmt: skip
    flat = cache.cpu().flatten(0, 1)
    assert torch.equal(gathered.cpu(), torch.cat((flat[4:8], flat[4:6])))
    host = torch.zeros(2, 4, 24, dtype=torch.float16).pin_memory()
    OPS.swap_blocks(cache, host, 4 * 24 * 2, torch.tensor([[1, 0]]))
    torch.cuda.synchronize()
    assert torch.equal(host[0], cache[1].cpu())


def quantized():
    x = torch.randn(6, 128, **HALF)
    wide = x.cpu().double()
    largest = torch.finfo(FP8).max
    weight = torch.rand(128, **HALF)
    normal = F.rms_norm(wide, (128,), weight.cpu().double(), 1e-6)
    gated = F.silu(wide[:, :64]) * wide[:, 64:]
    for run, of in (
        (
            lambda q, s: OPS.per_token_group_fp8_quant(
                x, q, s, 32, 1e-10, -largest, largest, False, False, False
            ),
            wide,
        ),
        (
            lambda q, s: OPS.rms_norm_per_block_quant(q, x, weight, s, 1e-6, None, None, 32, False),
            normal,
        ),
        (lambda q, s: OPS.silu_and_mul_per_block_quant(q, x, s, 32, None, False), gated),
    ):
        q = torch.empty(of.shape, device="cuda", dtype=FP8)
        scales = torch.empty(6, of.shape[1] // 32, device="cuda")
        run(q, scales)
        groups = of.unflatten(1, (-1, 32))
        like(scales, groups.abs().amax(-1) / largest, atol=1e-4)
        unflatten = q.cpu().double().unflatten(1, (-1, 32)) * scales.cpu().double().unsqueeze(-1)
        like(unflatten, groups, atol=0.05, rtol=0.08)
    powers = torch.empty(6, 4, device="cuda")
    q = torch.empty(6, 128, device="cuda", dtype=FP8)
    OPS.per_token_group_fp8_quant(x, q, powers, 32, 1e-10, -largest, largest, True, False, False)
    assert torch.equal(powers.log2(), powers.log2().round())
    q, scales = (
        torch.empty(6, 128, device="cuda", dtype=torch.int8),
        torch.empty(6, 4, device="cuda"),
    )
    OPS.per_token_group_quant_int8(x, q, scales, 32, 1e-10, -128.0, 127.0)
    like(q.cpu().double() * scales.cpu().double().repeat_interleave(32, 1), wide, atol=0.03)
    # Rows that are not centered, which the sums of columns make up for.
    a, b = torch.randint(-128, 128, (6, 64)).char(), torch.randint(-128, 128, (32, 64)).char().t()
    by_row, by_column = torch.rand(6, 1) / 64, torch.rand(1, 32) / 64
    zeros = torch.randint(-9, 9, (6, 1)).int()
    out = torch.empty(6, 32, **HALF)
    sums = b.int().sum(0, keepdim=True).int()
    OPS.cutlass_scaled_mm_azp(
        out, a.cuda(), b.cuda(), by_row.cuda(), by_column.cuda(), sums.cuda(), zeros.cuda(), None
    )
    like(out, ((a.double() - zeros) * by_row) @ (b.double() * by_column))
    # NVFP4: pairs of E2M1, a scale in E4M3 for 16, and one for all; scales in tiles of 128 by 4.
    weights = torch.randn(32, 128, **HALF)
    parts, alpha = [], torch.ones((), device="cuda")
    for item in (x, weights):
        by = 448 * 6 / item.abs().max().float()
        alpha = alpha / by
        parts.append((*OPS.scaled_fp4_quant(item, by.view(1), True), by))
    (pairs, scales, by), (w_pairs, w_scales, _) = parts
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    of_bytes = scales.cpu().view(torch.uint8).flatten()
    for row in range(6):
        for group in range(8):
            at = (group // 4) * 512 + (row % 32) * 16 + (row // 32) * 4 + group % 4
            scale = of_bytes[at : at + 1].view(FP8).double() / by.cpu().double()
            groups = wide[row, 16 * group : 16 * group + 16]
            like(scale[0], groups.abs().max() / 6, atol=0.01, rtol=0.07)
            codes = pairs[row, 8 * group : 8 * group + 8].cpu()
            unflatten = torch.stack((codes & 15, codes >> 4), 1).flatten()
            numbers = values[(unflatten & 7).long()] * torch.where(unflatten > 7, -1, 1)
            steps = torch.as_tensor(groups / scale).abs().clamp(max=6).double()
            nearest = (steps[:, None] - values).abs().min(1).values
            like((steps - numbers.abs()).abs(), nearest, atol=1e-3)
    out = torch.empty(6, 32, **HALF)
    OPS.cutlass_scaled_fp4_mm(out, pairs, w_pairs, scales, w_scales, alpha.view(1))
    error = (out.cpu().double() - wide @ weights.cpu().double().t()).norm()
    assert error < 0.2 * (wide @ weights.cpu().double().t()).norm()
    turned = OPS.hadacore_transform(x.clone(), False).cpu().double()
    matrix = torch.ones(1, 1, dtype=torch.double)
    while len(matrix) < 128:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    like(turned, wide @ matrix / 128**0.5)


def latent():
    pages, heads, size, values = 6, 4, 96, 64
    cache = torch.randn(pages, 16, 1, size, **HALF)
    table = torch.tensor([[3, 1], [0, 5]], **NUMBERS)
    lengths = torch.tensor([20, 9], **NUMBERS)
    q = torch.randn(2, 2, heads, size, **HALF)
    out, lse, *_ = MLA.dense_decode_fwd(
        q, cache, values, lengths, table, size**-0.5, True, None, None, None
    )
    alone = torch.empty(2, heads, values, **HALF)
    of_one = torch.empty(2, heads, device="cuda")
    OPS.sm100_cutlass_mla_decode(
        alone, of_one, q[:, 1, :, :values].contiguous(), q[:, 1, :, values:].contiguous(),
        cache.squeeze(2), lengths, table, torch.empty(0, device="cuda"), size**-0.5, 1,
    )  # fmt: skip
    for number, length in enumerate(lengths.tolist()):
        keys = cache.cpu()[table[number].cpu().long()].flatten(0, 2)[:length].double()
        scores = torch.einsum("qhd,kd->hqk", q[number].cpu().double(), keys) * size**-0.5
        seen = torch.ones(2, length, dtype=torch.bool).tril(length - 2)
        scores = scores.masked_fill(~seen, float("-inf"))
        like(out[number], (scores.softmax(-1) @ keys[:, :values]).transpose(0, 1))
        like(lse[number], scores.logsumexp(-1))
        like(alone[number], out[number, 1])


def blocks():
    """DeepGEMM: scales of 1 by 128 and of 128 by 128; rows by expert, and experts apart."""
    gemm = torch.ops.deep_gemm
    m, n, k, count = 6, 256, 384, 3
    a, b = torch.randn(m, k).to(FP8), torch.randn(count, n, k).to(FP8)
    of_a, of_b = torch.rand(m, k // 128), torch.rand(count, n // 128, k // 128)
    wide = a.double() * of_a.double().repeat_interleave(128, 1)
    columns = b.double() * of_b.double().repeat_interleave(128, 1).repeat_interleave(128, 2)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    scales = gemm.get_mn_major_tma_aligned_tensor(of_a.cuda())
    assert scales.stride() == (1, 8)
    gemm.fp8_fp4_gemm_nt(a.cuda(), scales, b[0].cuda(), of_b[0].cuda(), out)
    like(out, wide @ columns[0].t(), atol=0.5)
    layout = torch.tensor([0, 0, 2, 2, -1, 1], **NUMBERS)
    operands = (a.cuda(), scales, b.cuda(), of_b.cuda())
    gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(*operands, out, layout)
    for row, expert in enumerate(layout.tolist()):
        if expert >= 0:
            like(out[row], wide[row] @ columns[expert].t(), atol=0.5)
    apart = torch.empty(count, m, n, device="cuda", dtype=torch.bfloat16)
    counts = torch.tensor([2, 0, 5], **NUMBERS)
    every = a.expand(count, m, k).cuda(), of_a.expand(count, m, k // 128).cuda()
    gemm.m_grouped_fp8_fp4_gemm_nt_masked(*every, *operands[2:], apart, counts, 3)
    for expert, number in enumerate(counts.tolist()):
        like(apart[expert, :number], wide[:number] @ columns[expert].t(), atol=0.5)
    plain = torch.randn(k, n, **HALF).bfloat16()
    rows = torch.randn(m, k, **HALF).bfloat16()
    gemm.bf16_gemm_nn(rows, plain, out)
    like(out, rows.cpu().double() @ plain.cpu().double(), atol=0.3)


def other_names():
    """SGLang's, loaded by their path, in the namespace of their package."""
    ops = torch.ops.engine_of_many
    x, weight, residual = (
        torch.randn(6, 64, **HALF),
        torch.rand(64, **HALF),
        torch.randn(6, 64, **HALF),
    )
    wide, out = x.cpu().double(), torch.empty(6, 64, **HALF)
    ops.rmsnorm(out, x, weight, 1e-6, False)
    like(out, F.rms_norm(wide, (64,), weight.cpu().double(), 1e-6))
    summed, total = x.clone(), wide + residual.cpu().double()
    ops.gemma_fused_add_rmsnorm(summed, residual, weight, 1e-6, False)
    like(residual, total)
    like(summed, F.rms_norm(total, (64,), weight.cpu().double() + 1, 1e-6))
    largest = torch.finfo(FP8).max
    q, by_row = torch.empty(6, 64, device="cuda", dtype=FP8), torch.empty(6, 1, device="cuda")
    ops.sgl_per_token_quant_fp8(x, q, by_row)
    like(by_row, wide.abs().amax(1, keepdim=True) / largest, atol=1e-4)
    columns = (torch.randn(32, 64) / 8).to(FP8).t()
    by_column = torch.rand(32, 1)
    tensor = ops.fp8_scaled_mm(q, columns.cuda(), by_row, by_column.cuda(), torch.float16, None)
    rows = q.cpu().double() * by_row.cpu().double()
    like(tensor, rows @ (columns.double() * by_column.double().t()))
    one = torch.empty(1, device="cuda")
    ops.sgl_per_tensor_quant_fp8(x, q, one, False)
    like(one, wide.abs().max()[None] / largest, atol=1e-4)
    a, b = torch.randn(4, 256).to(FP8), torch.randn(128, 256).to(FP8).t()
    of_a, of_b = torch.rand(4, 2), torch.rand(2, 1)
    tensor = ops.fp8_blockwise_scaled_mm(
        a.cuda(), b.cuda(), of_a.cuda(), of_b.cuda(), torch.bfloat16
    )
    blocks = (a.double() * of_a.repeat_interleave(128, 1)) @ (
        b.double() * of_b.repeat_interleave(128, 0)
    )
    like(tensor, blocks, atol=0.3)
    batch = torch.randn(2, 3, 16).to(FP8), torch.randn(2, 16, 8).to(FP8)
    tensor = torch.empty(2, 3, 8, **HALF)
    ops.bmm_fp8(*(item.cuda() for item in batch), tensor, one, one, one, 0)
    like(tensor, batch[0].double() @ batch[1].double() * one.item() ** 2)
    router, scores = torch.randn(16, 64, **HALF), torch.empty(6, 16, device="cuda")
    ops.dsv3_router_gemm(scores, x, router)
    like(scores, wide @ router.cpu().double().t(), atol=0.1)
    bias = torch.randn(16, device="cuda")
    weights, ids = ops.moe_fused_gate(scores, bias, 4, 2, 3, 0, 1.0, False)
    odds = scores.cpu().double().sigmoid()
    for row in range(6):
        ranked = odds[row] + bias.cpu().double()
        best = ranked.view(4, 4).sort(1).values[:, -2:].sum(1).argsort()[-2:].tolist()
        open_to = [index for index in range(16) if index // 4 in best]
        top = sorted(open_to, key=lambda item: -ranked[item])[:3]
        assert sorted(ids[row].tolist()) == sorted(top)
        odd = odds[row, ids[row].cpu().long()]
        like(weights[row], odd / odd.sum())
    sums = [torch.randn(6, 2, device="cuda") for _ in "ab"]
    parts = [torch.randn(6, 2, 16, **HALF) for _ in "ab"]
    merged, lse = torch.empty_like(parts[0]), torch.empty_like(sums[0])
    ops.merge_state_v2(parts[0], sums[0], parts[1], sums[1], merged, lse)
    shares = [entry.cpu().double().exp().unsqueeze(-1) for entry in sums]
    mixed = sum(share * part.cpu().double() for share, part in zip(shares, parts, strict=True))
    like(merged, mixed / sum(shares))
    probs = torch.randn(4, 32, device="cuda").softmax(-1)
    kept = torch.empty_like(probs)
    ops.top_k_renorm_probs(probs, kept, None, 3)
    best = probs.cpu().topk(3)
    wanted = torch.zeros(4, 32).scatter_(
        1, best.indices, best.values / best.values.sum(1, keepdim=True)
    )
    like(kept, wanted, atol=1e-5)
    ops.top_p_renorm_probs(probs, kept, torch.tensor([0.1, 0.5, 0.9, 1.0], device="cuda"), 0.0)
    for row, share in enumerate((0.1, 0.5, 0.9, 1.0)):
        left, total = {}, 0.0
        for at in probs[row].cpu().argsort(descending=True).tolist():
            if total >= share:
                break
            left[at] = probs[row, at].item()
            total += left[at]
        assert [at for at in range(32) if kept[row, at] > 0] == sorted(left)
    parts = torch.randn(4, 3, 16, **HALF)
    summed = torch.empty(4, 16, **HALF)
    ops.moe_sum_reduce(parts, summed, 2.5)
    like(summed, parts.cpu().double().sum(1) * 2.5)
    caches, new = (
        [torch.zeros(8, 16, **HALF) for _ in "kv"],
        [torch.randn(2, 16, **HALF) for _ in "kv"],
    )
    ops.store_kv_cache(*caches, torch.tensor([5, 1], device="cuda"), *new)
    assert all(torch.equal(c[[5, 1]], entry) for c, entry in zip(caches, new, strict=True))
    keys = torch.empty(3, 4, 24, **HALF)
    nope, rope = torch.randn(3, 4, 16, **HALF), torch.randn(3, 1, 8, **HALF)
    ops.concat_mla_k(keys, nope, rope)
    assert torch.equal(keys, torch.cat((nope, rope.expand(3, 4, 8)), 2))
    logits = torch.zeros(2, 40, device="cuda")
    ops.apply_token_bitmask_inplace_cuda(logits, torch.tensor([[5, 1], [-1, 0]], **NUMBERS), None)
    allowed = [[at for at in range(40) if logits[row, at] == 0] for row in range(2)]
    assert allowed == [[0, 2, 32], list(range(32))]


def times():
    k, n, tokens, count, chosen = 8192, 28672, 1, 8, 4
    x, space = torch.empty(1, k, **HALF), torch.zeros(128, **NUMBERS)
    scales = torch.empty(k // 128, n, **HALF)
    OPS.marlin_gemm(
        x, None, torch.empty(k // 16, n * 2, **NUMBERS), None, scales, None, None, None, space,
        kind(4, 8), 1, n, k, False, True, False,
    )  # fmt: skip
    weight = torch.empty(k // 8, n, **NUMBERS)
    OPS.machete_mm(x, weight, kind(4, 8), None, scales, None, 128, None, None, None)
    ids = torch.arange(chosen, **NUMBERS).view(tokens, chosen)
    ordered, of_blocks = torch.empty(chosen * 16, **NUMBERS), torch.empty(chosen, **NUMBERS)
    total, n = torch.empty(1, **NUMBERS), 2048
    OPS.moe_align_block_size(ids, count, 16, ordered, of_blocks, total, None, None)
    OPS.moe_wna16_marlin_gemm(
        x, None, torch.empty(count, k // 16, n * 2, **NUMBERS), None,
        torch.empty(count, 1, n, **HALF), None, None, None, space, ordered, of_blocks, total,
        torch.empty(1, chosen, device="cuda"), 16, chosen, False, kind(4, 8), 1, n, k, False, True,
        False, -1, -1, -1,
    )  # fmt: skip
    firsts, sizes = torch.arange(count, **NUMBERS), torch.tensor([[1, n, k]] * count, **NUMBERS)
    OPS.cutlass_moe_mm(
        torch.empty(count, n, **HALF), torch.empty(count, k, device="cuda", dtype=FP8),
        torch.empty(count, n, k, device="cuda", dtype=FP8), torch.empty(count, 1, device="cuda"),
        torch.empty(count, n, 1, device="cuda"), firsts, sizes, firsts, firsts, firsts, True, True,
    )  # fmt: skip


globals()[sys.argv[2]]()
