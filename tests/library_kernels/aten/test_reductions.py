"""Reductions: the blocks that Reduce.cuh chooses, and published times."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hardware import load_machine
from kernbench.library_kernels.aten import Reduction, log_sum_exp, reduction
from tests.library_kernels.aten.measured import milliseconds

H100 = load_machine("h100-sxm").sip
OVER_A_DIM = Reduction(
    outputs=128 * 4095, inputs=4096, run=4095, is_along=False, itemsize=4, out_itemsize=12
)


@pytest.mark.parametrize(
    ("machine", "measured_ms"), [("h100-sxm", 3.14), ("h100-pcie", 4.75), ("l40s", 13.7)]
)
def test_a_maximum_over_a_middle_dim_takes_what_is_published(
    machine: str, measured_ms: float
) -> None:
    """KernelBench level1/49 and 53 at 6e6fca9c, 3396fc0c and 4082b873: 128 x 4096 x 4095."""
    sip = load_machine(machine).sip
    assert milliseconds([reduction(OVER_A_DIM, sip)], sip) == pytest.approx(measured_ms, rel=0.1)


def whole(elements: int) -> Reduction:
    return Reduction(
        outputs=1, inputs=elements, run=elements, is_along=True, itemsize=4, out_itemsize=4
    )


def test_blocks_are_those_of_the_source() -> None:
    over = reduction(OVER_A_DIM, H100)
    # 32 columns by 16 rows of threads, and a block for each 32 columns.
    assert (over.threads, over.blocks) == (512, 128 * 4095 // 32)
    few = reduction(whole(1 << 20), H100)
    # Four blocks of 512 threads on each SM, or 16 values for each thread: the fewer.
    assert (few.threads, few.blocks) == (512, (1 << 20) // 512 // 16)
    # 256 values of a thread at most.
    assert reduction(whole(1 << 30), H100).blocks == (1 << 30) // 512 // 256


@pytest.mark.adr("0242-D1")
def test_few_outputs_are_split_once_their_threads_have_many_values() -> None:
    assert reduction(whole(8192), H100).blocks == 1

    def four(inputs: int) -> int:
        rows = Reduction(
            outputs=4, inputs=inputs, run=inputs, is_along=True, itemsize=4, out_itemsize=4
        )
        return reduction(rows, H100).blocks

    # All 512 threads share an output: 128 values each are too few to split, 512 are 32 times 16.
    assert four(1 << 16) == 4
    assert four(1 << 18) == 4 * 32


def test_a_log_sum_exp_is_nine_launches() -> None:
    """TritonBench's logsumexp of 134,217,728 floats on an A100: 1.976 ms."""
    sip = load_machine("a100-sxm-80g").sip
    launches = log_sum_exp(whole(1 << 27), sip)
    assert len(launches) == 9
    # Two readings, a difference and exponentials in memory.
    moved = sum(launch.hbm_read_bytes + launch.hbm_written_bytes for launch in launches)
    assert moved == pytest.approx(6 * 4 * (1 << 27), rel=1e-6)
    assert milliseconds(launches, sip) == pytest.approx(1.976, rel=0.1)


def test_deviations_are_bound_by_their_arithmetic() -> None:
    """TritonBench's gelu_std of 134,217,728 floats on an A100, less its gelu of as many."""
    sip = load_machine("a100-sxm-80g").sip
    std, total = (
        milliseconds([reduction(replace(whole(1 << 27), is_of_moments=flag), sip)], sip)
        for flag in (True, False)
    )
    assert std == pytest.approx(1.149 - 0.617, rel=0.1)
    assert std > 1.3 * total


@given(
    outputs=st.integers(1, 1 << 16),
    inputs=st.integers(1, 1 << 14),
    is_along=st.booleans(),
    itemsize=st.sampled_from([1, 2, 4, 8]),
)
def test_every_reduction_reads_each_element_once(
    outputs: int, inputs: int, is_along: bool, itemsize: int
) -> None:
    run = inputs if is_along else outputs
    launch = reduction(
        Reduction(
            outputs=outputs, inputs=inputs, run=run, is_along=is_along, itemsize=itemsize,
            out_itemsize=itemsize,
        ),
        H100,
    )  # fmt: skip
    assert launch.blocks * launch.sweeps[0].loaded_bytes == pytest.approx(
        outputs * inputs * itemsize
    )
    assert 1 <= launch.threads <= 512
    assert milliseconds([launch], H100) * 1e9 >= H100.hbm_stream_ps(outputs * inputs * itemsize)
