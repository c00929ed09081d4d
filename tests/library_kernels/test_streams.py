"""Kernels that move data: their bytes, and what a cache keeps of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hardware import KernelConstants, load_library, load_machine
from kernbench.library_kernels import column_sums, kept_share, scattered, stream, time_kernel

SIP = load_machine("h100-sxm").sip
A100 = load_machine("a100-sxm-80g").sip
CONSTANTS = load_library("sm80").constants("aten_scattered")
RETAINED = 25 * 2**20
"""Half of the 50 MiB of an H100's cache."""


def test_a_stream_moves_the_bytes_that_it_was_given() -> None:
    kernel = stream("test", 3e9, 1e9)
    assert kernel.port_bytes == pytest.approx(4e9)
    assert (kernel.hbm_read_bytes, kernel.hbm_written_bytes) == (3e9, 1e9)


def test_what_a_cache_retains_does_not_come_from_hbm_again() -> None:
    assert kept_share(RETAINED, SIP) == 1
    assert kept_share(1.5 * RETAINED, SIP) == pytest.approx(0.5)
    assert kept_share(2 * RETAINED, SIP) == 0
    constants = KernelConstants(source="assumed")
    assert time_kernel(stream("test", RETAINED / 2, RETAINED / 2), SIP, constants).hbm_us == 0


def test_an_empty_stream_is_one_tile_without_bytes() -> None:
    kernel = stream("test", 0.0, 0.0)
    assert kernel.num_tiles == 1
    assert kernel.port_bytes == 0


def scattered_us(elements: int, read: float, written: float) -> float:
    return time_kernel(
        scattered("aten_scattered", elements, read, written), A100, CONSTANTS
    ).total_us


@given(st.integers(1, 10**9), st.integers(1, 8), st.integers(1, 8))
def test_no_launch_beats_bytes_or_the_wait_of_threads(elements: int, read: int, made: int) -> None:
    found = scattered_us(elements, read * elements, made * elements)
    assert found >= (read + made) * elements / 2039e3
    # Each of 2048 threads of a PE has one element under way.
    assert found >= elements / (108 * 2048) * float(CONSTANTS.trip_ns) / 1e3 * (1 - 1e-9)


def test_narrow_elements_wait_and_wide_ones_stream() -> None:
    elements = 1 << 28
    halves, doubles = (scattered_us(elements, size * elements, size * elements) for size in (2, 8))
    # A quarter of the bytes, but as many loads.
    assert doubles < 2.5 * halves
    assert doubles == pytest.approx(16 * elements / (0.88 * 2039e3), rel=0.15)


@pytest.mark.parametrize(
    ("fewer", "more", "measured_us"),
    [
        (1_048_576, 8_388_608, 53.87 - 15.12),
        (8_388_608, 67_108_864, 362.46 - 53.87),
    ],
)
def test_conversions_take_as_long_as_measured_on_an_a100(
    fewer: int, more: int, measured_us: float
) -> None:
    """What more bfloat16 to float32 take, before pull request 195542 of PyTorch."""
    sip = load_machine("a100-sxm-40g").sip
    launches = [
        scattered("aten_scattered", elements, 2.0 * elements, 4.0 * elements)
        for elements in (fewer, more)
    ]
    few_us, more_us = (time_kernel(each, sip, CONSTANTS).total_us for each in launches)
    assert more_us - few_us == pytest.approx(measured_us, rel=0.15)


def test_sums_of_few_columns_wait_for_rows_whatever_the_columns() -> None:
    """Closed form: a block for each 16 columns, and 256 rows of it under way."""
    rows, constants = 100864, load_library("sm80").constants("aten_norm_weights")

    def sums_us(columns: int) -> float:
        kernel = column_sums("aten_norm_weights", rows, columns, 4)
        assert kernel.num_tiles == -(-columns // 16)
        assert kernel.port_bytes >= kernel.hbm_read_bytes == 2 * rows * columns * 4
        return time_kernel(kernel, A100, constants).total_us

    assert sums_us(16) == pytest.approx(rows / 256 * float(constants.trip_ns) / 1e3, rel=0.1)
    assert sums_us(192) == pytest.approx(sums_us(16), rel=0.01)
    assert sums_us(16 * 108 * 4) > 1.9 * sums_us(192)
