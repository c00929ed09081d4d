"""Shared memory and registers of a block, against what Triton and ptxas take for GPUs."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl

from kernbench import RuntimeContext
from kernbench.hardware import load_machine
from kernbench.kernel_time.costs.block_costs import (
    BlockCosts,
    resident_blocks,
    spilled_registers,
)
from kernbench.triton_backend.binary import build_binary


@triton.jit
def product(a, b, out, K, M: tl.constexpr, N: tl.constexpr, B: tl.constexpr, ONCE: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, B)
    x_at, y_at = a + m[:, None] * K + k[None, :], b + k[:, None] * N + n[None, :]
    total = tl.zeros((M, N), tl.float32)
    if ONCE:
        total = tl.dot(tl.load(x_at), tl.load(y_at), total)
    else:
        for _ in range(0, K, B):
            total = tl.dot(tl.load(x_at), tl.load(y_at), total)
            x_at += B
            y_at += B * N
    tl.store(out + m[:, None] * N + n[None, :], total)


@triton.jit
def attention(q, k, v, out, length, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    m, n, d = tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
    rows = tl.load(q + m[:, None] * D + d[None, :])
    total = tl.zeros((M, D), tl.float32)
    most = tl.zeros((M,), tl.float32) - float("inf")
    for at in range(0, length, N):
        scores = tl.dot(rows, tl.load(k + (at + n)[None, :] * D + d[:, None]))
        new = tl.maximum(most, tl.max(scores, 1))
        p = tl.exp2(scores - new[:, None])
        total = total * tl.exp2(most - new)[:, None]
        total = tl.dot(p.to(tl.float16), tl.load(v + (at + n)[:, None] * D + d[None, :]), total)
        most = new
    tl.store(out + m[:, None] * D + d[None, :], total)


# M, N, K of the tile, warps, stages; what Triton 3.9 says in `metadata.shared` when it compiles
# these for 9.0 and for 8.0, and the registers that ptxas of CUDA 12.9 reports for 9.0.
PRODUCTS = [
    ((128, 128, 64), 4, 3, 98_304, 65_536, 220),
    ((128, 128, 64), 8, 3, 98_304, 65_536, 122),
    ((128, 256, 64), 8, 3, 147_456, 98_304, 202),
    ((64, 64, 32), 4, 4, 32_768, 24_576, 60),
    ((32, 32, 64), 4, 3, 16_384, 16_384, 54),
    ((16, 64, 64), 1, 3, 20_480, 20_480, 168),
    ((64, 128, 64), 2, 3, 49_152, 49_152, 255),
    ((64, 64, 64), 8, 1, 16_384, 16_384, 54),
]


@pytest.mark.adr("0136-D1")
@pytest.mark.parametrize("stages", [1, 2])
def test_operands_that_are_never_alive_together_share_a_place(stages: int) -> None:
    with RuntimeContext(machine="a100-sxm-80g", data=False) as torch:
        x = torch.empty(256, 128, dtype=torch.float16)
        compiled = attention[(1,)](
            x, x, x, torch.empty(64, 128), 256, 64, 64, 128, num_stages=stages
        )
    rows = block = 64 * 128 * 2
    # Loads that run ahead are all on their way; else the keys are dead when values are loaded.
    # What is computed between them crosses to other warps. Triton 3.9 says 40,960 and 57,344.
    assert compiled.metadata.shared == rows + stages * block + 64 * 64 * 2


@pytest.mark.adr("0136-D1")
@pytest.mark.parametrize(("machine", "place"), [("h100-sxm", 0), ("a100-sxm-80g", 1)])
def test_shared_memory_is_tritons(machine: str, place: int) -> None:
    with RuntimeContext(machine=machine, data=False) as torch:
        for (m, n, k), warps, stages, *shared, _ in PRODUCTS:
            a, b = (torch.empty(size, dtype=torch.float16) for size in (m * 4 * k, 4 * k * n))
            compiled = product[(1,)](
                *(a, b, torch.empty(m, n), 4 * k, m, n, k, False),
                num_warps=warps, num_stages=stages,
            )  # fmt: skip
            assert compiled.metadata.shared == shared[place], (m, n, k, warps, stages)
        x = torch.empty(256, 128, dtype=torch.float16)
        compiled = attention[(1,)](x, x, x, torch.empty(128, 128), 256, 128, 64, 128, num_stages=3)
        assert compiled.metadata.shared == (131_072, 98_304)[place]


@pytest.mark.adr("0136-D1")
def test_operands_that_are_loaded_once_need_shared_memory_too() -> None:
    with RuntimeContext(machine="h100-sxm", data=False) as torch:
        a, out = torch.empty(128 * 512, dtype=torch.float16), torch.empty(128, 128)
        with pytest.raises(triton.runtime.errors.OutOfResources) as refused:
            product[(1,)](a, a, out, 512, 128, 128, 512, True)
        limit = "Required: 262144, Hardware limit: 232448. Reducing block sizes or `num_stages`"
        assert str(refused.value).startswith(f"out of resource: shared memory, {limit} may help.")


def test_registers_are_near_those_of_ptxas() -> None:
    from kernbench.kernel_ir import parse_module, tcm_use

    with RuntimeContext(machine="h100-sxm", data=False) as torch:
        for (m, n, k), warps, stages, *_, registers in PRODUCTS:
            a, b = (torch.empty(size, dtype=torch.float16) for size in (m * 4 * k, 4 * k * n))
            compiled = product[(1,)](
                *(a, b, torch.empty(m, n), 4 * k, m, n, k, False),
                num_warps=warps, num_stages=stages,
            )  # fmt: skip
            use = tcm_use(parse_module(compiled.asm["ttir"]), stages).registers
            assert use.per_thread(32 * warps) == pytest.approx(registers, rel=0.3)


@triton.jit
def scaled(a, b, rows, columns, out, K, M: tl.constexpr, N: tl.constexpr, B: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, B)
    total = tl.zeros((M, N), tl.float32)
    for at in range(0, K, B):
        x = tl.load(a + m[:, None] * K + at + k[None, :])
        y = tl.load(b + n[None, :] * K + at + k[:, None])
        row, column = tl.load(rows + m * K + at), tl.load(columns + n * K + at)
        total += tl.dot(x, y) * row[:, None] * column[None, :]
    tl.store(out + m[:, None] * N + n[None, :], total.to(tl.float16))


# Rows, columns, warps; registers and bytes of spills, as cuobjdump says of what Triton 3.9 and its
# ptxas make of this in float16, 64 deep, with three stages, for 9.0.
SCALED = [
    ((64, 64, 4), 150, 0),
    ((64, 128, 4), 194, 0),
    ((128, 128, 4), 255, 304),
    ((128, 256, 8), 255, 288),
    ((64, 256, 4), 255, 368),
]


@pytest.mark.parametrize(("tile", "registers", "spilled"), SCALED)
def test_a_product_that_is_scaled_before_it_is_added_lies_beside_the_sum(
    tile: tuple[int, int, int], registers: int, spilled: int
) -> None:
    rows, columns, warps = tile
    with RuntimeContext(machine="h100-sxm", data=False) as torch:
        a, b, out = (torch.empty(512 * 512, dtype=torch.float16) for _ in range(3))
        scales = torch.empty(512 * 512)
        launched = scaled[(1,)](a, b, scales, scales, out, 512, rows, columns, 64, num_warps=warps)
        block = build_binary(launched.asm["ttir"], "scaled", warps, 3).thread_block(90, 32)
    assert block is not None
    assert min(block.registers, 255) == pytest.approx(registers, rel=0.4)
    # Pointers and scales, 60 registers at most, are in no estimate.
    ours = 4 * spilled_registers(block, load_machine("h100-sxm", 1).sip)
    assert ours == pytest.approx(spilled, abs=240)


@triton.jit
def softmax(x, out, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=-float("inf"))
    values = values - tl.max(values, 0)
    powers = tl.exp(values)
    tl.store(out + row * n + at, powers / tl.sum(powers, 0), mask=at < n)


@triton.jit
def normed(x, weight, bias, out, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at, mask=at < n, other=0)
    centered = tl.where(at < n, values - tl.sum(values, 0) / n, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centered * centered, 0) / n + 1e-5)
    result = centered * scale * tl.load(weight + at, mask=at < n) + tl.load(bias + at, mask=at < n)
    tl.store(out + row * n + at, result, mask=at < n)


@triton.jit
def added(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n)
    tl.store(out + at, total, mask=at < n)


@triton.jit
def quantized(x, scales, out, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at)
    scale = tl.max(tl.abs(values)) / 127.0
    scaled = values / scale
    scaled += 0.5 * tl.where(scaled >= 0, 1, -1)
    tl.store(out + row * n + at, scaled.to(tl.int8))
    tl.store(scales + row, scale)


@triton.jit
def copied(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))


# Elements of float32, warps, registers, and bytes that each thread stores in local memory and loads
# from there, as ptxas of CUDA 12.9 reports of what Triton 3.9 makes of these for 9.0; the last two,
# ptxas of CUDA 13.0 for 8.0.
UNLOOPED = [
    ("softmax", 4096, 1, 167, 0, 0),
    ("softmax", 4096, 8, 32, 0, 0),
    ("softmax", 8192, 4, 96, 0, 0),
    ("softmax", 32768, 8, 169, 0, 0),
    ("softmax", 32768, 32, 50, 0, 0),
    ("softmax", 65536, 16, 128, 344, 444),
    ("softmax", 32768, 4, 32, 4124, 5744),
    ("softmax", 65536, 8, 32, 3836, 5404),
    ("softmax", 32768, 2, 32, 9728, 11768),
    ("softmax", 65536, 4, 32, 9668, 11700),
    ("softmax", 32768, 1, 64, 17812, 20456),
    ("normed", 4096, 2, 142, 0, 0),
    ("normed", 8192, 4, 143, 0, 0),
    ("normed", 32768, 8, 255, 0, 0),
    ("normed", 32768, 16, 128, 76, 76),
    ("normed", 32768, 4, 32, 7708, 8368),
    ("added", 8192, 4, 118, 0, 0),
    ("added", 32768, 16, 128, 0, 0),
    ("added", 32768, 4, 32, 5480, 5216),
    ("quantized", 32768, 4, 255, 180, 180),
    ("copied", 32768, 4, 255, 60, 60),
]


@pytest.mark.parametrize(("name", "size", "warps", "registers", "stored", "loaded"), UNLOOPED)
def test_programs_without_a_loop_spill_what_ptxas_spills(
    name: str, size: int, warps: int, registers: int, stored: int, loaded: int
) -> None:
    kernel, count = {
        "softmax": (softmax, 2), "normed": (normed, 4), "added": (added, 3),
        "quantized": (quantized, 3), "copied": (copied, 2),
    }[name]  # fmt: skip
    with RuntimeContext(machine="h100-sxm", data=False) as torch:
        dtypes = ["float32"] * (count - 1) + ["int8" if name == "quantized" else "float32"]
        operands = [torch.empty(size, dtype=dtype) for dtype in dtypes]
        compiled = kernel[(1,)](*operands, size, size, num_warps=warps)
        ttir = compiled.asm["ttir"]
    block = build_binary(ttir, name, warps, 3).thread_block(90, 32)
    sip = load_machine("h100-sxm").sip
    assert block is not None
    assert sip.pe.warps is not None
    costs = BlockCosts(block, sip.pe.warps, sip)
    moved = costs.spill_ps * sip.clock_ghz / 1000 * sip.pe.warps.shared_bytes_per_clock
    of_thread = float(moved) / (32 * warps)
    if stored > 1024:
        assert of_thread == pytest.approx(stored + loaded, rel=0.65)
        assert resident_blocks(block, sip) == min(64 // warps, 32)
    else:
        # Within the registers that an estimate may be off by.
        assert of_thread == pytest.approx(stored + loaded, abs=4 * 4 * 32)
        held = min(block.registers, 255)
        assert held == pytest.approx(registers, rel=0.35, abs=32)


@triton.jit
def attended(q, k, v, out, N: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    rows, columns, lanes = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    rows += tl.program_id(0) * BM
    query = tl.load(q + rows[:, None] * D + lanes[None, :])
    top, total = tl.full((BM,), -float("inf"), tl.float32), tl.full((BM,), 1.0, tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in tl.range(0, N, BN):
        keys = tl.load(k + (start + columns)[None, :] * D + lanes[:, None])
        s = tl.dot(query, keys)
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.math.exp2(s - new[:, None])
        alpha = tl.math.exp2(top - new)
        total = total * alpha + tl.sum(p, 1)
        values = tl.load(v + (start + columns)[:, None] * D + lanes[None, :])
        acc = tl.dot(p.to(tl.float16), values, acc * alpha[:, None])
        top = new
    tl.store(out + rows[:, None] * D + lanes[None, :], (acc / total[:, None]).to(tl.float16))


# Head size, rows, columns, warps; registers and bytes of spills on 8.0 and on 9.0, as cuobjdump
# says of what Triton 3.9 and its ptxas make of this.
ATTENTION = [
    ((64, 128, 64, 4), (250, 0), (188, 0)),
    ((64, 128, 64, 8), (141, 0), (108, 0)),
    ((64, 64, 64, 4), (151, 0), (106, 0)),
    ((64, 128, 128, 4), (255, 112), (241, 0)),
    ((64, 128, 128, 8), (190, 0), (157, 0)),
    ((128, 128, 64, 8), (202, 0), (139, 0)),
    ((128, 128, 64, 4), (255, 176), (255, 32)),
    ((128, 128, 128, 8), (255, 32), (197, 0)),
    ((128, 64, 64, 4), (211, 0), (138, 0)),
    ((256, 64, 32, 4), (254, 0), (189, 0)),
    ((256, 128, 64, 8), (255, 48), (219, 0)),
]


@triton.jit
def paged(q, table, k, out, length, B: tl.constexpr):
    m, d = tl.arange(0, 16), tl.arange(0, 64)
    rows = tl.load(q + m[:, None] * 64 + d[None, :])
    acc = tl.zeros((16, B), tl.float32)
    for at in range(0, length, B):
        place = tl.load(table + at + tl.arange(0, B))
        keys = tl.load(k + place[None, :] * 64 + d[:, None])
        acc += tl.dot(rows, keys)
    tl.store(out + m[:, None] * B + tl.arange(0, B)[None, :], acc)


# What Triton 3.9 says in `metadata.shared` when it compiles this for 8.0.
@pytest.mark.parametrize(
    ("stages", "expected"), [(3, 18_944), (4, 18_944), (5, 35_840), (6, 35_840)]
)
def test_loads_of_loaded_addresses_share_the_stages(stages: int, expected: int) -> None:
    with RuntimeContext(machine="a100-sxm-80g", data=False) as torch:
        q, k = (torch.empty(512 * 64, dtype=torch.float16) for _ in range(2))
        table = torch.empty(512, dtype=torch.int32)
        compiled = paged[(1,)](
            q, table, k, torch.empty(16 * 128), 512, 128, num_warps=4, num_stages=stages
        )
    assert compiled.metadata.shared == expected


# Head size, rows, columns, warps; `metadata.shared` of Triton 3.9 for 8.0 with two stages.
CROSSING = [((128, 64, 64, 4), 57_344), ((256, 64, 64, 4), 106_496), ((64, 64, 64, 4), 24_576)]


@pytest.mark.adr("0279-D1")
@pytest.mark.parametrize(("tile", "expected"), CROSSING)
def test_factors_that_cross_to_other_warps_take_shared_memory(
    tile: tuple[int, int, int, int], expected: int
) -> None:
    size, rows, columns, warps = tile
    with RuntimeContext(machine="a100-sxm-80g", data=False) as torch:
        q, k, v, out = (torch.empty(512 * size, dtype=torch.float16) for _ in range(4))
        compiled = attended[(1,)](
            *(q, k, v, out, 512, size, rows, columns), num_warps=warps, num_stages=2
        )
    assert compiled.metadata.shared == expected


@pytest.mark.parametrize(("tile", "ampere", "hopper"), ATTENTION)
def test_registers_of_attention_are_near_those_of_ptxas(
    tile: tuple[int, int, int, int], ampere: tuple[int, int], hopper: tuple[int, int]
) -> None:
    size, rows, columns, warps = tile
    with RuntimeContext(machine="h100-sxm", data=False) as torch:
        q, k, v, out = (torch.empty(512 * size, dtype=torch.float16) for _ in range(4))
        compiled = attended[(1,)](
            *(q, k, v, out, 512, size, rows, columns), num_warps=warps, num_stages=2
        )
        binary = build_binary(compiled.asm["ttir"], "attended", warps, 2)
    for machine, architecture, (registers, spilled) in [
        ("a100-sxm-80g", 80, ampere),
        ("h100-sxm", 90, hopper),
    ]:
        block = binary.thread_block(architecture, 32)
        assert block is not None
        assert min(block.registers, 255) == pytest.approx(registers, rel=0.1)
        ours = 4 * spilled_registers(block, load_machine(machine, 1).sip)
        # Of 66 and more registers that do not fit, ptxas finds room for some.
        assert ours == pytest.approx(spilled, abs=160)
