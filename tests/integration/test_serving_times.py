"""Kernels that serve models take a small multiple of what their bytes and operations take."""

from __future__ import annotations

from typing import Any

import pytest

from kernbench.hardware import load_machine
from kernbench.runtime_api import RuntimeContext
from tests.integration import serving_kernels as kernels

SIP = load_machine("h100-sxm", 1).sip_at(0)


def time_ps(
    name: str,
    kernel: Any,
    build: Any,
    grid: tuple[int, ...],
    machine: str = "h100-sxm",
    **options: Any,
) -> int:
    """Return how long a launch takes without data, after one that warms nothing but the host."""
    with RuntimeContext(machine=machine, data=False) as torch:
        handle: Any = torch.launch(name, kernel, *build(torch), grid=grid, **options)
        torch.wait(handle)
        return int(handle.end_ps - handle.start_ps)


def bound_ps(size_bytes: int, flops: int = 0) -> float:
    """Return what the bytes take on the HBM at least, or the operations on all PEs."""
    rate = SIP.gemm_flops_per_clock("float16") * SIP.num_pes * float(SIP.clock_ghz)
    return max(size_bytes / float(SIP.hbm_gbps) * 1000, flops / rate * 1000)


@pytest.mark.adr("0100-D1")
def test_parentheses_around_the_offsets_of_a_gather_change_nothing() -> None:
    n, rows, width = 1 << 16, 32, 128
    times = [
        time_ps(
            "gather_rows",
            kernels.gather_rows,
            lambda torch: (
                torch.empty(n, width, dtype="f16"),
                torch.empty(n, dtype="i32"),
                torch.empty(n // rows),
                width,
            ),
            (n // rows,),
            TOGETHER=together,
            ROWS=rows,
            D=width,
        )
        for together in (False, True)
    ]
    assert times[0] == times[1] <= 3 * bound_ps(n * width * 2)


@pytest.mark.adr("0100-D1")
def test_a_modulo_that_the_mask_makes_idle_costs_nothing() -> None:
    n, rows, columns = 1_000_000, 123, 8180
    times = [
        time_ps(
            "split_sums",
            kernels.split_sums,
            lambda torch: (torch.empty(n), torch.empty(rows), rows, columns, n),
            (-(-rows // 4),),
            MODULO=modulo,
            XBLOCK=4,
            RBLOCK=2048,
        )
        for modulo in (False, True)
    ]
    assert times[0] == times[1]


HEADS, GROUP, D, PAGE = 8, 16, 128, 16


def attention(torch: Any, tokens: int, queries: int) -> tuple[Any, ...]:
    """Return the operands of attention over a paged cache of so many tokens."""
    cache = [torch.empty(tokens // PAGE, PAGE, HEADS, D, dtype="f16") for _ in range(2)]
    q, o = (torch.empty(queries, HEADS * GROUP, D, dtype="f16") for _ in range(2))
    return q, *cache, torch.empty(tokens // PAGE, dtype="i32"), o


@pytest.mark.adr("0100-D2")
def test_decoding_over_pages_is_near_the_time_of_its_cache() -> None:
    batch, length = 32, 1024
    ps = time_ps(
        "paged_decode",
        kernels.paged_decode,
        lambda torch: (
            *attention(torch, batch * length, batch), length, PAGE * HEADS * D, HEADS * D, 0.1,
        ),
        (batch, HEADS),
        PAGE=PAGE, GROUP=GROUP, D=D, T=32,
    )  # fmt: skip
    assert ps <= 3 * bound_ps(2 * batch * length * HEADS * D * 2)


@pytest.mark.adr("0100-D2")
def test_a_prefill_over_pages_is_near_the_time_of_its_products() -> None:
    length, tokens_of_a_tile = 1024, 4
    ps = time_ps(
        "paged_prefill",
        kernels.paged_prefill,
        lambda torch: (
            *attention(torch, length, length), length, PAGE * HEADS * D, HEADS * D, 0.1,
        ),
        (length // tokens_of_a_tile, HEADS),
        PAGE=PAGE, GROUP=GROUP, D=D, T=64, BQ=tokens_of_a_tile,
    )  # fmt: skip
    flops = 4 * HEADS * GROUP * D * length * (length + 64) // 2
    assert ps <= 3 * bound_ps(4 * length * HEADS * D * 2, flops)


@pytest.mark.adr("0100-D2")
@pytest.mark.parametrize(("tokens", "block"), [(1024, 128), (16, 16)])
def test_a_mixture_of_experts_is_near_the_time_of_its_weights(tokens: int, block: int) -> None:
    top, n, k, num_experts = 2, 1792, 1024, 8
    blocks = tokens * top // block
    ps = time_ps(
        "expert_rows",
        kernels.expert_rows,
        lambda torch: (
            torch.empty(tokens, k, dtype="f16"),
            torch.empty(num_experts, n, k, dtype="f16"),
            torch.empty(tokens, top, n, dtype="f16"),
            torch.empty(tokens * top, dtype="i32"),
            torch.empty(blocks, dtype="i32"),
            tokens * top, n, k, top,
        ),
        (n // 128, blocks),
        BM=block, BN=128, BK=64, num_stages=4,
    )  # fmt: skip
    moved = min(blocks, num_experts) * n * k + tokens * k + tokens * top * n
    assert ps <= 3 * bound_ps(2 * moved, 2 * tokens * top * n * k)


# 64 tiles of 64 rows; matrices of 51 MB, of which 9 tiles of a wave need two if there are eight.
def test_tiles_of_few_experts_read_few_matrices() -> None:
    tokens, n, k, rows = 4096, 1792, 14336, 64
    few, many = (
        time_ps(
            "expert_rows",
            kernels.expert_rows,
            lambda torch, num=num: (
                torch.empty(tokens, k, dtype="f16"),
                torch.empty(num, n, k, dtype="f16"),
                torch.empty(tokens, 1, n, dtype="f16"),
                torch.empty(tokens, dtype="i32"),
                torch.empty(tokens // rows, dtype="i32"),
                tokens, n, k, 1,
            ),
            (n // 128, tokens // rows),
            BM=rows, BN=128, BK=64, num_stages=4,
        )
        for num in (8, tokens // rows)
    )  # fmt: skip
    flops = 2 * tokens * n * k
    # Every tile of the result reads its rows and its columns through the cache.
    assert SIP.pe.warps is not None
    assert SIP.pe.warps.cache_bandwidth_gbps is not None
    crossing = tokens // rows * (n // 128) * (rows + 128) * k * 2
    assert few <= 1.2 * crossing / float(SIP.pe.warps.cache_bandwidth_gbps) * 1000
    assert bound_ps(2 * 64 * n * k) <= many <= 1.5 * bound_ps(2 * 64 * n * k, flops)


@pytest.mark.adr("0100-D4")
def test_what_is_looked_up_in_a_small_table_costs_no_more_than_the_table() -> None:
    n, b = 1 << 22, 1024

    def decode_ps(entries: int) -> int:
        return time_ps(
            "decode_4bits",
            kernels.decode_4bits,
            lambda torch: (
                torch.empty(n, dtype="i32"),
                torch.empty(entries, dtype="f16"),
                torch.empty(n, dtype="f16"),
            ),
            (n // b,),
            B=b,
        )

    # The codes and the numbers; a burst for each element of a table that no cache holds.
    assert decode_ps(16) <= 3 * bound_ps(6 * n)
    assert decode_ps(16) < decode_ps(1 << 20) < decode_ps(1 << 30)
    assert decode_ps(1 << 30) >= bound_ps(6 * n + n * SIP.cube.hbm_burst_bytes)


@pytest.mark.adr("0100-D1")
def test_pointers_and_offsets_that_move_in_a_loop_cost_the_same() -> None:
    n, k, rows = 1 << 12, 1000, 16
    times = {
        how: time_ps(
            "gathered_sums",
            kernels.gathered_sums,
            lambda torch: (torch.empty(n, k), torch.empty(n, dtype="i32"), torch.empty(n, 64), k),
            (n // rows,),
            HOW=how,
            ROWS=rows,
            BK=64,
        )
        for how in ("pointers move", "offsets move", "from the start", "anew")
    }
    assert len(set(times.values())) == 1, times


# Block-scaled FP8 in Triton, with the tiles that SGLang and vLLM ship for these devices: rows,
# columns of a tile, and microseconds. Sources: sgl-project/sglang, pull request 5820 (H200, "sglang
# triton" before the change); vllm-project/vllm, pull request 49932 (H20).
SCALED = [
    ("h200", 256, 128, 143.0), ("h200", 1024, 128, 537.7), ("h200", 4096, 128, 2200.2),
    ("h20", 1024, 64, 1436.6), ("h20", 8192, 64, 11351.1),
]  # fmt: skip


@pytest.mark.parametrize(("machine", "m", "block", "measured_us"), SCALED)
def test_products_with_scales_take_what_was_measured(
    machine: str, m: int, block: int, measured_us: float
) -> None:
    n, k = 24576, 7168
    ps = time_ps(
        "scaled_products",
        kernels.scaled_products,
        lambda torch: (
            torch.empty(m, k, dtype="fp8e4m3"),
            torch.empty(n, k, dtype="fp8e4m3"),
            torch.empty(m, k // 128),
            torch.empty(n // 128, k // 128),
            torch.empty(m, n, dtype="bf16"),
            m, n, k,
        ),
        (m // 64 * (n // block),),
        machine,
        BM=64, BN=block, BK=128, GROUP=32, num_warps=4, num_stages=3,
    )  # fmt: skip
    # All are too fast: what addresses and barriers take is not modeled.
    assert 0.85 < ps / 1e6 / measured_us < 1.02
