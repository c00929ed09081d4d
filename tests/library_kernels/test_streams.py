"""Kernels that move data: their bytes, and what a cache keeps of them."""

import pytest

from kernbench.hardware import KernelConstants, load_library, load_machine
from kernbench.library_kernels import column_sums, kept_share, stream, time_kernel

SIP = load_machine("h100-sxm").sip
A100 = load_machine("a100-sxm-80g").sip
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
