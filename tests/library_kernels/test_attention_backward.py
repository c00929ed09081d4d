"""The backward pass's tiles against brute force over queries and keys."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hardware import load_library, load_machine
from kernbench.library_kernels import AttentionProblem, FlashKernel, flash_backward_launches

KERNEL = FlashKernel(name="test", block_m=8, block_n=16)


@given(st.integers(1, 70), st.integers(0, 50), st.booleans())
def test_tiles_of_keys_go_over_the_queries_that_see_them(
    q_len: int, more: int, causal: bool
) -> None:
    problem = AttentionProblem(
        batch=2, q_len=q_len, kv_len=q_len + more, heads=3, kv_heads=3, head_dim=64, causal=causal
    )
    expected = 0
    for first in range(0, q_len + more, 16):
        keys = range(first, min(first + 16, q_len + more))
        seeing = {
            query // 8
            for query in range(q_len)
            if not causal or any(key <= query + more for key in keys)
        }
        expected += max(len(seeing), 1)
    _, main, _ = flash_backward_launches(problem, KERNEL)
    assert sum(tile.count * tile.trips for tile in main.tiles) == 6 * expected


def test_a_pass_does_five_products_and_streams_beside() -> None:
    problem = AttentionProblem(batch=1, q_len=64, kv_len=64, heads=4, kv_heads=2, head_dim=64)
    prepare, main, convert, gather = flash_backward_launches(problem, KERNEL)
    assert main.flops == 5 * 2 * 4 * 64 * 64 * 64
    assert [item.flops for item in (prepare, convert, gather)] == [0, 0, 0]
    elements = 64 * 4 * 64
    assert convert.hbm_read_bytes == 4 * elements
    assert convert.hbm_written_bytes == 2 * elements
    # Gradients of keys and values of each head, added up over the two heads of a group.
    assert gather.hbm_read_bytes == 2 * 2 * elements == 2 * gather.hbm_written_bytes
    assert prepare.hbm_read_bytes == pytest.approx(2 * 2 * elements)


def test_a_kernel_that_skips_no_window_goes_over_all_queries() -> None:
    problem = AttentionProblem(
        batch=1, q_len=64, kv_len=64, heads=1, kv_heads=1, head_dim=64, causal=True, window=8
    )
    whole = replace(KERNEL, skips_window=False)

    def trips(kernel: FlashKernel, of: AttentionProblem) -> float:
        main = flash_backward_launches(of, kernel)[1]
        return sum(tile.count * tile.trips for tile in main.tiles)

    assert trips(whole, problem) == trips(whole, replace(problem, window=0))
    assert trips(KERNEL, problem) < trips(whole, problem)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_hopper_runs_amperes_memory_efficient_kernels_by_its_instructions(direction: str) -> None:
    """An SM has a share of wgmma's rate by them, twice an A100's; all else takes as many clocks."""
    ampere, hopper = (
        float(load_library(name).constants(f"efficient_{direction}").tensor_share)
        for name in ("sm80", "sm90")
    )
    warps = load_machine("h100-sxm", 1).sip.pe.warps
    assert warps is not None
    of_wgmma = 2.0
    clocks = ampere / (of_wgmma * float(warps.mma_share)) + 1 - ampere
    assert hopper == pytest.approx(ampere / clocks / of_wgmma, rel=0.01)
