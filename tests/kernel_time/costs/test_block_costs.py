"""How many blocks an SM holds, and what warps cost."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernbench import RuntimeContext
from kernbench.commands import (
    DmaRead,
    Gemm,
    IndexTile,
    Loop,
    Math,
    MathClass,
    Reduce,
    Separable,
    SourceLine,
    Splat,
    Tile,
    axis_dim,
)
from kernbench.dtypes import float32
from kernbench.hardware import SipSpec, load_machine
from kernbench.kernel_ir import NO_CUDA
from kernbench.kernel_time import ThreadBlock
from kernbench.kernel_time.costs import bursts
from kernbench.kernel_time.costs.block_costs import (
    BlockCosts,
    resident_blocks,
    spilled_registers,
    warp_grid,
    wave_grid,
)
from kernbench.kernel_time.program.timed_plan import build_program_plan
from tests.kernel_time.kernel_traces import gemm_trace
from tests.tiers import of_campaigns

H100, A100 = load_machine("h100-sxm", 1).sip, load_machine("a100-sxm-80g", 1).sip
ONE = ThreadBlock(num_warps=4, registers=32, shared_bytes=0, architecture=90)


# By hand from the limits of 9.0 and 8.0: 64 warps, 32 blocks, 65,536 registers, 228 and 164 KiB of
# shared memory, of which each block takes 1 KiB more.
@pytest.mark.adr("0136-D2")
@pytest.mark.parametrize(
    ("sip", "block", "expected"),
    [
        (H100, ONE, 16),
        (H100, replace(ONE, num_warps=1), 32),
        (H100, replace(ONE, num_warps=8), 8),
        (H100, replace(ONE, registers=128), 4),
        (H100, replace(ONE, registers=129), 3),
        (H100, replace(ONE, registers=700, num_warps=8), 1),
        (H100, replace(ONE, shared_bytes=96 * 1024), 2),
        (A100, replace(ONE, shared_bytes=96 * 1024), 1),
        (A100, replace(ONE, shared_bytes=48 * 1024), 3),
    ],
)
def test_residency_follows_from_the_limits_of_an_sm(
    sip: SipSpec, block: ThreadBlock, expected: int
) -> None:
    assert resident_blocks(block, sip) == expected


# By hand from those of CDNA 3: 32 waves of 64 lanes, 512 KiB of registers, 64 KiB of shared memory.
@pytest.mark.adr("0136-D8")
@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (ONE, 8),
        (replace(ONE, num_warps=1), 32),
        (replace(ONE, registers=128), 4),
        (replace(ONE, registers=512), 1),
        (replace(ONE, shared_bytes=32 * 1024), 2),
        (replace(ONE, shared_bytes=33 * 1024), 1),
    ],
)
def test_residency_of_waves_follows_from_the_limits_of_a_cu(
    block: ThreadBlock, expected: int
) -> None:
    sip = load_machine("mi300x", 1).sip
    assert resident_blocks(replace(block, architecture=NO_CUDA), sip) == expected


# An SM has 65,536 registers: 1,024 threads have 64 each, 128 threads 255. A CU has twice as many.
@pytest.mark.adr("0136-D1")
def test_many_warps_leave_each_thread_few_registers() -> None:
    def spilled_bytes(sip: SipSpec, num_warps: int, registers: int) -> int:
        assert sip.pe.warps is not None
        block = replace(ONE, num_warps=num_warps, registers=registers)
        cycles = BlockCosts(block, sip.pe.warps, sip).spill_ps * sip.clock_ghz / 1000
        return round(cycles) * sip.pe.warps.shared_bytes_per_clock

    assert spilled_bytes(H100, 32, 64) == spilled_bytes(H100, 4, 255) == 0
    # In a loop each is stored and read back.
    assert spilled_bytes(H100, 32, 94) == (94 - 64) * 4 * 1024 * 2
    assert spilled_bytes(H100, 16, 130) == (130 - 128) * 4 * 512 * 2
    cdna = load_machine("mi300x", 1).sip
    assert spilled_bytes(cdna, 8, 256) == spilled_bytes(cdna, 4, 512) == 0
    assert spilled_bytes(cdna, 8, 258) == (258 - 256) * 4 * 512 * 2


def test_a_tile_that_no_thread_can_hold_leaves_few_registers() -> None:
    fits = replace(ONE, registers=290, tile_registers=255)
    assert resident_blocks(fits, H100) == 2
    assert spilled_registers(fits, H100) == 290 - 255
    given_up = replace(fits, tile_registers=256)
    assert resident_blocks(given_up, H100) == 16
    assert spilled_registers(given_up, H100) == 290
    # That is ptxas; AMD's compiler spills what it has no registers for. Vector instructions reach
    # half of them.
    of_amd, cdna = replace(given_up, architecture=NO_CUDA), load_machine("mi300x", 1).sip
    assert spilled_registers(of_amd, cdna) == 290 - 256
    assert spilled_registers(replace(of_amd, multiplies=True), cdna) == 0


# The wave waits for each register that it reads back, twice for each that is spilled.
def test_a_wave_waits_for_what_it_spilled() -> None:
    cdna = load_machine("mi300x", 1).sip
    assert cdna.pe.warps is not None
    block = replace(ONE, registers=256 + 100, architecture=NO_CUDA)
    waits = 2 * 100 * cdna.pe.warps.cache_latency_cycles
    assert BlockCosts(block, cdna.pe.warps, cdna).spill_ps == cdna.cycles_ps(waits)


def exchanged(sip: SipSpec, shape: tuple[int, ...], axis: int, vector: int) -> int:
    """Return the cycles of what lanes and warps of one block exchange for a sum."""
    assert sip.pe.warps is not None
    values = Tile(0, shape, float32)
    summed = Tile(1, (*shape[:axis], *shape[axis + 1 :]), float32)
    line = SourceLine("", 0)
    command = Reduce((summed,), "arith.addf", (values,), axis, line, vector=vector)
    costs = BlockCosts(ONE, sip.pe.warps, sip)
    rate = sip.pe.math.elements_per_clock.exchange
    return round(costs.exchange_ps(command, rate) / sip.cycles_ps(1000) * 1000)


# 128 threads with 4 values in a row: a row of 128 is one warp's, and 64 rows leave each thread 16.
def test_only_what_threads_cannot_add_up_themselves_is_exchanged() -> None:
    rate = H100.pe.math.elements_per_clock.exchange
    # Five times half of a warp with the other half.
    rows = exchanged(H100, (64, 128), 1, 4)
    assert rows == pytest.approx(64 * 32 * 5 / rate, rel=0.01)
    # Lanes are along columns: rows are added up in threads, and once among four warps.
    assert exchanged(H100, (64, 128), 0, 4) == pytest.approx(512 * 26 / rate, rel=0.01)
    # Pairs next to each other are of one thread, 4 apart of two lanes, 128 apart of two warps.
    pairs = [exchanged(H100, (4096 // inner // 2, 2, inner), 1, 4) for inner in (1, 4, 128, 512)]
    assert pairs == [0, 4096 // rate, 4096 * 26 // rate, 0]
    # Of what a product left, four lanes share a row: they exchange the one value of each, twice.
    assert exchanged(H100, (64, 128), 1, 0) == 64 * 4 * 2 // rate


def test_spilled_registers_leave_an_sm_that_has_no_room_for_them() -> None:
    def beyond(sip: SipSpec, active: int, **changes: Any) -> tuple[Fraction, Fraction]:
        assert sip.pe.warps is not None
        return BlockCosts(replace(ONE, **changes), sip.pe.warps, sip).spills_beyond(active)

    # 2 blocks of 128 threads: an SM has 254 KiB for the 100 KiB that they spill, or for 1.2 MiB.
    assert not any(beyond(H100, 132, registers=255 + 100))
    far, of_hbm = beyond(H100, 132, registers=255 + 1200)
    assert far == 1200 * 4 * 128 * 2
    # 132 SMs have as much: more than twice what the cache of all SMs holds.
    assert of_hbm == far
    # What one SM has alone stays in that cache.
    assert beyond(H100, 1, registers=255 + 1200) == (far, Fraction(0))


@triton.jit
def one_product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(c + m[:, None] * N + n[None, :], tl.dot(x, y))


@pytest.mark.parametrize(
    ("m", "n", "warps"),
    [
        (128, 128, 4), of_campaigns(128, 128, 8), (16, 64, 4), of_campaigns(64, 64, 4),
        of_campaigns(32, 32, 1), (32, 128, 8), (256, 64, 8), of_campaigns(64, 32, 4),
        of_campaigns(16, 32, 8),
    ],
)  # fmt: skip
def test_warps_are_laid_over_a_tile_as_triton_does(m: int, n: int, warps: int) -> None:
    """The oracle is the layout in what Triton itself compiles for 8.0."""
    source = ASTSource(
        one_product,
        {"a": "*fp16", "b": "*fp16", "c": "*fp32"},
        {"M": m, "N": n, "K": 32},
    )
    result = triton.compile(
        source,
        target=GPUTarget("cuda", 80, 32),
        options={"num_warps": warps, "enable_fp_fusion": True},
    )
    answer = re.search(r"nvidia_mma<[^>]*warpsPerCTA = \[(\d+), (\d+)\]", result.asm["ttgir"])
    assert answer is not None
    assert warp_grid(m, n, warps) == (int(answer[1]), int(answer[2]))


@pytest.mark.adr("0278-D1")
@pytest.mark.parametrize(
    ("m", "n", "warps", "asked"),
    [
        (32, 64, 4, 0), (64, 32, 4, 0), of_campaigns(64, 32, 8, 0), of_campaigns(16, 64, 8, 0),
        of_campaigns(64, 16, 8, 0), (128, 128, 8, 0), of_campaigns(32, 128, 8, 0),
        of_campaigns(128, 32, 8, 0), (64, 64, 8, 16), of_campaigns(32, 32, 4, 16),
    ],
)  # fmt: skip
def test_waves_are_laid_over_a_tile_as_triton_does(m: int, n: int, warps: int, asked: int) -> None:
    """The oracle is the layout in what Triton itself compiles for gfx942."""
    source = ASTSource(
        one_product, {"a": "*fp16", "b": "*fp16", "c": "*fp32"}, {"M": m, "N": n, "K": 32}
    )
    options = {"num_warps": warps, "matrix_instr_nonkdim": asked, "enable_fp_fusion": True}
    ttgir = triton.compile(source, target=GPUTarget("hip", "gfx942", 64), options=options)
    answer = re.search(
        r"amd_mfma<.*?warpsPerCTA = \[(\d+), (\d+)\], instrShape = \[(\d+),", ttgir.asm["ttgir"]
    )
    assert answer is not None
    down, across, side = map(int, answer.groups())
    sip = load_machine("mi300x", 1).sip
    assert sip.pe.warps is not None
    block = replace(ONE, num_warps=warps, architecture=NO_CUDA, matrix_side=asked)
    assert BlockCosts(block, sip.pe.warps, sip).warps_of(m, n, None) == (down, across)
    assert wave_grid(m, n, warps, side) == (down, across)


@triton.jit
def widened(x, y, n, BLOCK: tl.constexpr, TO: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    for _ in range(n):
        value = (value.to(TO) ^ 5).to(value.dtype)
    tl.store(y + at, value)


def time_us(machine: str, kernel: Any, dtype: str, to: Any) -> float:
    """The time of a kernel that is bound by vector math."""
    with RuntimeContext(machine=machine, data=False) as torch:
        x, y = (torch.empty(256 * 1024, dtype=getattr(torch, dtype)) for _ in range(2))
        launch = partial(kernel[(256,)], x, y, 2000, 1024, to)
        return float(triton.testing.do_bench_cudagraph(launch) * 1e3)


@pytest.mark.adr("0280-D1")
def test_elements_of_two_registers_take_two_instructions() -> None:
    wide = time_us("h100-sxm", widened, "int64", tl.int64)
    narrow = time_us("h100-sxm", widened, "int32", tl.int32)
    assert 1.5 < wide / narrow < 2.2


@triton.jit
def pairs(x, y, out, K, STEP: tl.constexpr):
    rows, inner = tl.arange(0, 32), tl.arange(0, 32)
    total = tl.zeros((32, 32), tl.float32)
    for k in range(0, K, 32):
        a = tl.load(x + rows[:, None] * 2 * K + (k + inner)[None, :] * STEP)
        b = tl.load(y + (k + inner)[:, None] * 32 + rows[None, :])
        total = tl.dot(a, b, total)
    tl.store(out + rows[:, None] * 32 + rows[None, :], total)


@pytest.mark.adr("0280-D2")
@pytest.mark.parametrize(
    ("dtype", "triton_type"), [("float16", "fp16"), of_campaigns("float32", "fp32")]
)
def test_loads_of_scattered_halves_wait(dtype: str, triton_type: str) -> None:
    """The oracle is which loads Triton makes asynchronous copies for 8.0."""
    taken, copies = [], []
    for step in (1, 2):
        with RuntimeContext(machine="a100-sxm-80g", data=False) as torch:
            tensors = [torch.empty(32 * 2048, dtype=getattr(torch, dtype)) for _ in range(3)]
            options = {"num_warps": 4, "num_stages": 4}
            launch = partial(pairs[(1,)], *tensors, 1024, step, **options)
            taken.append(triton.testing.do_bench_cudagraph(launch))
        signature = {**dict.fromkeys(("x", "y", "out"), f"*{triton_type}"), "K": "i32"}
        attributes = {(place,): [["tt.divisibility", 16]] for place in range(4)}
        source = ASTSource(pairs, signature, {"STEP": step}, attributes)
        options |= {"enable_fp_fusion": True}
        compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options)
        text = compiled.asm["ttgir"]
        loop = text[text.index("scf.for") :]
        copies.append(loop.count("async_copy_global_to_local"))
    assert (copies[1] < copies[0]) == (dtype == "float16")
    assert (taken[1] > 1.5 * taken[0]) == (dtype == "float16")


def product_ps(sip: SipSpec, block: ThreadBlock, m: int, n: int) -> int:
    rate = Fraction(sip.pe.gemm.flops_per_clock["float16"])
    assert sip.pe.warps is not None
    return BlockCosts(block, sip.pe.warps, sip).product_ps((1, m, n, 64), 2, rate)


@pytest.mark.adr("0246-D1")
def test_small_tiles_cost_more_per_element_of_the_result() -> None:
    for sip, architecture in ((H100, 90), (A100, 80)):
        block = replace(ONE, architecture=architecture)
        ps = [product_ps(sip, block, size, size) / size**2 for size in (16, 32, 64, 128)]
        assert ps == sorted(ps, reverse=True)
    # Tiles of fewer than 64 rows or warps of no group do without wgmma.
    full, half = product_ps(H100, ONE, 128, 128), product_ps(H100, ONE, 64, 128)
    assert full == pytest.approx(2 * half, rel=0.01)
    alone = product_ps(H100, replace(ONE, num_warps=2), 128, 128)
    assert H100.pe.warps is not None
    assert alone >= full / float(H100.pe.warps.mma_share) * 0.99


# By hand: of 64 x 128 elements of float16, 64 deep, wgmma reads (64 + 128) * 64 * 2 bytes of shared
# memory, and loads write as many: 384 cycles at 128 bytes each, where the matrix unit takes 297.
def test_copies_of_factors_take_their_part_of_shared_memory() -> None:
    assert H100.pe.warps is not None
    costs = BlockCosts(ONE, H100.pe.warps, H100)
    rate, size = Fraction(4096), (64 + 128) * 64 * 2
    alone = costs.product_ps((1, 64, 128, 64), 2, rate)
    assert alone == pytest.approx(2 * 64 * 128 * 64 / (4096 * 0.86049) / 1.83 * 1000, rel=0.01)
    copied = costs.product_ps((1, 64, 128, 64), 2, rate, copied_bytes=size)
    assert copied == pytest.approx(2 * size / 128 / 1.83 * 1000, rel=0.01)


def test_what_is_loaded_before_a_loop_is_copied_once() -> None:
    ((loop, *_),) = (group.body for group in gemm_trace(64, 128, 256, (64, 128, 32)).groups)
    assert isinstance(loop, Loop)
    first, second, dot = loop.body
    for before, inside, expected in (
        ((), loop.body, 2 * (64 * 32 + 32 * 128)),
        ((first,), (second, dot), 2 * 32 * 128),
    ):
        plan = build_program_plan((*before, replace(loop, body=inside)), 6)
        assert plan.sites[-1].copied_bytes == expected


# By hand: 64 x 32 and 32 x 128 elements of float16 are copied; threads that do not have a second
# factor's elements where they multiply read and write them besides. Triton 3.9 compiles for 8.0 a
# factor times 2, or times what is loaded before the loop, to one read of shared memory, and one
# times its index to a read, a write, a read.
@pytest.mark.parametrize("num_stages", [1, 2])
def test_a_factor_computed_of_more_than_loads_is_written_again(num_stages: int) -> None:
    ((loop, *_),) = (group.body for group in gemm_trace(64, 128, 256, (64, 128, 32)).groups)
    assert isinstance(loop, Loop)
    first, second, dot = loop.body
    assert isinstance(second, DmaRead)
    assert isinstance(dot, Gemm)
    factor = Tile(50, second.dst.shape, second.dst.dtype)
    copied, size = 2 * (64 * 32 + 32 * 128), 2 * 32 * 128
    rows = Separable(factor.shape, 0, {(axis_dim(0),): np.arange(32)})
    for other, expected in (
        (Splat(2.0, factor.shape, factor.dtype), copied),
        (Tile(49, factor.shape, factor.dtype), copied),
        (IndexTile(rows, factor.dtype), copied + size * num_stages),
    ):
        math = Math(factor, "arith.mulf", (second.dst, other), MathClass.SIMPLE, dot.line)
        body = first, second, math, replace(dot, b=factor)
        plan = build_program_plan((replace(loop, body=body, num_stages=num_stages),), 51)
        assert plan.sites[-1].copied_bytes == expected


@triton.jit
def product(a, b, out, K, M: tl.constexpr, N: tl.constexpr, B: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, B)
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    width = tl.num_programs(1) * N
    total = tl.zeros((M, N), tl.float32)
    for at in range(0, K, B):
        x = tl.load(a + (row + m)[:, None] * K + at + k[None, :])
        y = tl.load(b + (at + k)[:, None] * width + (column + n)[None, :])
        total = tl.dot(x, y, total)
    tl.store(out + (row + m)[:, None] * width + (column + n)[None, :], total.to(tl.float16))


def times(machine: str, tile: tuple[int, int, int], warps: tuple[int, ...]) -> list[float]:
    size, (m, n, k) = 2048, tile
    with RuntimeContext(machine=machine, data=False) as torch:
        a, b, out = (torch.empty(size, size, dtype=torch.float16) for _ in range(3))
        grid = size // m, size // n
        return [
            triton.testing.do_bench(
                lambda w=warp: product[grid](a, b, out, size, m, n, k, num_warps=w)
            )
            for warp in warps
        ]


@pytest.mark.adr("0136-D1", "0136-D4")
def test_few_warps_spill_on_gpus_and_mean_nothing_elsewhere() -> None:
    one, four, eight = times("h100-sxm", (128, 256, 64), (1, 4, 8))
    assert one > four > eight
    assert len(set(times("ahbm", (64, 64, 64), (1, 4, 8)))) == 1


@triton.jit
def halves_of_pairs(x, out, K, STEP: tl.constexpr):
    rows, columns = tl.arange(0, 32)[:, None], tl.arange(0, 64)[None, :]
    total = tl.zeros((32, 64), tl.float16)
    for at in range(0, K, 64 * STEP):
        total += tl.load(x + rows * K + at + columns * STEP)
    tl.store(out + rows * 64 + columns, total)


@pytest.mark.parametrize("is_first", [False, True])
def test_a_line_takes_a_clock(is_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes along 32 rows touch as many lines for 64 bytes, lanes along a row of pairs one."""
    monkeypatch.setattr(bursts, "FIRST_AXIS_OF_EQUALS", is_first)
    bursts._known.cache_clear()
    trips = 256
    took_us = []
    for step in (1, 2):
        with RuntimeContext(machine="h100-sxm", data=False) as torch:
            x, out = (torch.empty(32 * 64 * 2 * trips, dtype=torch.float16) for _ in range(2))
            launch = partial(halves_of_pairs[(1,)], x, out, 64 * step * trips, step)
            took_us.append(triton.testing.do_bench_cudagraph(launch) * 1e3)
    bursts._known.cache_clear()
    lines = 32 * (64 if is_first else 2)
    assert took_us[1] * 1e6 >= H100.cycles_ps(lines * trips)
    # Rows of 64 elements are contiguous, and a line each.
    assert (took_us[1] > 1.5 * took_us[0]) == is_first


def test_lanes_lie_as_the_installed_triton_lays_them() -> None:
    """The oracle is the layout of a load of which no elements are contiguous."""
    signature = {"x": "*fp16", "out": "*fp16", "K": "i32"}
    attributes = {(place,): [["tt.divisibility", 16]] for place in range(3)}
    source = ASTSource(halves_of_pairs, signature, {"STEP": 2}, attributes)
    options = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": True}
    text = triton.compile(source, GPUTarget("cuda", 90, 32), options=options).asm["ttgir"]
    loads = re.findall(r"tt\.load .*tensor<32x64x!tt.ptr<f16>, (#blocked\d*)>", text)
    orders = [re.search(rf"^{load} = .*order = \[(\d)", text, re.MULTILINE) for load in loads]
    assert orders
    assert all(order and (order[1] == "0") == bursts.FIRST_AXIS_OF_EQUALS for order in orders)


@triton.jit
def rows_of_softmax(x, out, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * n + at)
    values = values - tl.max(values, 0)
    powers = tl.exp(values)
    tl.store(out + row * n + at, powers / tl.sum(powers, 0))


def test_few_warps_spill_a_large_tile_without_a_loop_too() -> None:
    def took(machine: str, size: int, warps: int) -> tuple[float, dict[str, Any]]:
        with RuntimeContext(machine=machine, data=False) as torch:
            x, out = torch.empty(1024, size), torch.empty(1024, size)
            rows_of_softmax[(1024,)](x, out, size, size, num_warps=warps)
            torch.ahbm.synchronize()
        template = torch.op_log.instances[-1].template
        return template.duration_ps, dict(template.launched_with)

    for machine in ("h100-sxm", "a100-sxm-80g"):
        (one, said), (eight, unsaid) = (took(machine, 32768, number) for number in (1, 8))
        assert one > 3 * eight
        assert said["spilled_registers"] > 1000
        assert unsaid.get("spilled_registers", 0) == 0
        assert took(machine, 4096, 1)[0] < 1.2 * took(machine, 4096, 8)[0]
    assert took("ahbm", 8192, 1)[0] == took("ahbm", 8192, 8)[0]


@triton.jit
def copy(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))


@pytest.mark.adr("0136-D2")
def test_more_blocks_in_flight_hide_latency_until_hbm_is_full() -> None:
    size = 1 << 24
    with RuntimeContext(machine="h100-sxm", data=False) as torch:
        x, out = torch.empty(size), torch.empty(size)
        warps = 32, 16, 8, 4, 2
        result = [
            triton.testing.do_bench_cudagraph(
                lambda w=warp: copy[(size // 512,)](x, out, 512, num_warps=w)
            )
            for warp in warps
        ]
    reached = float(load_machine("h100-sxm", 1).sip.cube.hbm_efficiency)
    streams_ms = 2 * 4 * size / (3350e9 * reached) * 1e3
    # Two blocks of 32 warps cannot hide the latency; 32 of two warps do.
    assert result[0] > 1.25 * result[-1]
    assert streams_ms < result[-1] < 1.1 * streams_ms
    assert result == sorted(result, reverse=True)


@triton.jit
def scaled_products(a, b, scales, out, K, step, M: tl.constexpr, B: tl.constexpr):
    """Products of which each has a scale per row, ``step`` elements after the one before."""
    m, k = tl.arange(0, M), tl.arange(0, B)
    total = tl.zeros((M, M), tl.float32)
    for at in range(0, K, B):
        x = tl.load(a + m[:, None] * K + at + k[None, :])
        scale = tl.load(scales + m * 65536 + at // B * step)
        total += tl.dot(x, tl.load(b + (at + k)[:, None] * M + m[None, :])) * scale[:, None]
    tl.store(out + m[:, None] * M + m[None, :], total)


@pytest.mark.adr("0136-D6")
def test_loads_that_feed_no_product_wait_for_their_iteration_unless_they_are_near() -> None:
    def time_ms(step: int, stages: int) -> float:
        with RuntimeContext(machine="h100-sxm", data=False) as torch:
            a, b = (torch.empty(64, 8192, dtype=torch.float16) for _ in range(2))
            scales, out = torch.empty(64 * 65536), torch.empty(64, 64)
            testing = triton.testing.do_bench(
                lambda: scaled_products[(1,)](
                    a, b, scales, out, 8192, step, 64, 64, num_stages=stages
                )
            )
            return float(testing)

    # 128 iterations: each waits for HBM, 472 cycles of 1.83 GHz, whatever runs ahead.
    waits_ms = 128 * 472 / 1.83e6
    assert time_ms(64, 5) > waits_ms
    # Sixteen scales to a burst: fifteen of sixteen are in the multiprocessor's own cache.
    assert time_ms(1, 5) < 0.7 * time_ms(64, 5)


@triton.jit
def sums_of_rows(x, out, n, REPEATS: tl.constexpr, B: tl.constexpr):
    total = tl.zeros((B,), tl.float32)
    for _ in range(REPEATS):
        for at in range(0, n, B):
            k = at + tl.arange(0, B)
            total += tl.load(x + tl.program_id(0) * n + k, mask=k < n, other=0.0)
    tl.store(out + tl.program_id(0), tl.sum(total))


@triton.jit
def sums_without_a_loop(x, out, n, B: tl.constexpr):
    k = tl.arange(0, B)
    row = tl.load(x + tl.program_id(0) * n + k, mask=k < n, other=0.0)
    tl.store(out + tl.program_id(0), tl.sum(row))


@pytest.mark.adr("0136-D6")
@pytest.mark.parametrize("machine", ["h100-sxm", "a100-sxm-80g", "mi300x"])
def test_a_loop_reads_its_bytes_however_often_it_turns(machine: str) -> None:
    rows, n = 4096, 8192
    with RuntimeContext(machine=machine, data=False) as torch:
        x, out = torch.empty(rows, n), torch.empty(rows)

        def time_ms(repeats: int, block: int, length: int = n) -> float:
            return float(
                triton.testing.do_bench(
                    lambda: sums_of_rows[(rows,)](x, out, length, repeats, block)
                )
            )

        straight = float(
            triton.testing.do_bench(lambda: sums_without_a_loop[(rows,)](x, out, n, n))
        )
        turns = [time_ms(1, block) for block in (n // 4, n // 2, n, 2 * n)]
        once, again = (time_ms(repeats, 512, 512) for repeats in (1, 2))
    cube = load_machine(machine, 1).sip.cube
    bandwidth = cube.hbm_bandwidth_gbps * load_machine(machine, 1).sip.num_cubes
    least_ms = rows * n * 4 / float(bandwidth) / 1e6
    assert min(*turns, straight) > least_ms
    assert turns == pytest.approx([straight] * 4, rel=0.05)
    # What an outer loop reads again is in the multiprocessor's own cache.
    assert again < 1.5 * once


@pytest.mark.adr("0136-D7")
def test_products_of_few_rows_of_8_bit_floats_are_converted_on_hopper() -> None:
    def costs(architecture: int, sip: SipSpec) -> BlockCosts:
        block = replace(ONE, architecture=architecture)
        warps = sip.pe.warps
        assert warps is not None
        return BlockCosts(block, warps, sip)

    hopper = costs(90, H100)
    assert hopper.converts(16)
    assert hopper.converts(32)
    assert not hopper.converts(64)
    assert not costs(89, load_machine("l40s", 1).sip).converts(16)
    assert not costs(120, load_machine("rtx-5090", 1).sip).converts(16)
    # By hand: each of four warps has columns of its own and all 16 rows, so that 16 * 4 rows and
    # 128 columns of 128 elements are converted, 64 * 2 per cycle; 2 * 16 * 128 * 128 operations
    # take longer, and are made meanwhile.
    rate = Fraction(4096)
    cycles = 2 * 16 * 128 * 128 / (rate * H100.pe.gemm.efficiency * Fraction(62, 100))
    product_ps = hopper.product_ps((1, 16, 128, 128), 1, rate, converted=True)
    assert abs(product_ps - cycles / H100.clock_ghz * 1000) <= 1000 / H100.clock_ghz
    fast = hopper.product_ps((1, 16, 128, 128), 1, rate * 100, converted=True)
    converts = Fraction((16 * 4 + 128) * 128, 64 * 2)
    assert abs(fast - converts / H100.clock_ghz * 1000) <= 1000 / H100.clock_ghz
    # Eight instructions along K wait for each other, and the unit is not theirs meanwhile.
    waits = hopper.product_latency_ps(16, 256, 0) - hopper.product_latency_ps(64, 256, 0)
    assert abs(waits - 8 * 25 / H100.clock_ghz * 1000) <= 2 * 1000 / H100.clock_ghz
    assert hopper.product_latency_ps(16, 256, waits) == hopper.product_latency_ps(64, 256, 0)


@triton.jit
def tiled_product(
    a, b, out, M, N, K, TM: tl.constexpr, TN: tl.constexpr, TK: tl.constexpr, GROUP: tl.constexpr
):
    m, n, k = tl.arange(0, TM), tl.arange(0, TN), tl.arange(0, TK)
    columns = N // TN
    for tile in range(tl.program_id(0), M // TM * columns, tl.num_programs(0)):
        row = tile // (GROUP * columns) * GROUP + tile % GROUP
        rows, cols = row * TM + m, tile % (GROUP * columns) // GROUP * TN + n
        total = tl.zeros((TM, TN), tl.float32)
        for at in range(0, K, TK):
            x = tl.load(a + rows[:, None] * K + (at + k)[None, :])
            total = tl.dot(x, tl.load(b + (at + k)[:, None] * N + cols[None, :]), total)
        tl.store(out + rows[:, None] * N + cols[None, :], total.to(tl.float16))


@pytest.mark.adr("0136-D2")
@pytest.mark.parametrize("machine", ["h100-pcie", "a100-sxm-80g"])
def test_programs_that_go_over_tiles_share_them_as_programs_of_one_tile_do(machine: str) -> None:
    size, tile = (4096, 8192, 4096), (128, 256, 64)
    with RuntimeContext(machine=machine, data=False) as torch:
        m, n, k = size
        a, b, out = (torch.empty(*shape, dtype=torch.float16) for shape in ((m, k), (k, n), (m, n)))

        def time_ms(programs: int) -> float:
            return float(
                triton.testing.do_bench(
                    lambda: tiled_product[(programs,)](a, b, out, *size, *tile, 8, num_warps=8)
                )
            )

        tiles = (m // tile[0]) * (n // tile[1])
        apart = time_ms(tiles)
        sms = load_machine(machine, 1).sip.num_pes
        # As many tiles for each program as there are waves of single ones.
        waves = -(-tiles // sms)
        assert time_ms(sms) == pytest.approx(apart, rel=0.1)
        assert time_ms(-(-tiles // waves)) == pytest.approx(apart, rel=0.1)


@triton.jit
def nothing():
    pass


@pytest.mark.parametrize("machine", [of_campaigns("a100-sxm-80g"), "h100-sxm"])
def test_a_device_begins_one_program_after_the_other(machine: str) -> None:
    programs = 1 << (22 if machine == "a100-sxm-80g" else 18)
    with RuntimeContext(machine=machine, data=False):
        testing = triton.testing.do_bench_cudagraph(lambda: nothing[(programs,)]())
    sip = load_machine(machine, 1).sip
    assert testing >= programs * sip.dispatch_ps / 1e9
    if machine == "a100-sxm-80g":
        # Of programs of 4 and of 16 elements, 0.78 ns each were measured there.
        assert testing == pytest.approx(programs * 0.78e-6, rel=0.05)
