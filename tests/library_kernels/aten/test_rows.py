"""Layer norms and softmax: published times, and how often a row is read."""

import pytest

from kernbench.hardware import load_machine
from kernbench.library_kernels import kept_share
from kernbench.library_kernels.aten import (
    layer_norm,
    softmax,
    softmax_backward,
    spatial_softmax,
)
from tests.library_kernels.aten.measured import milliseconds

H100, A100, L4 = (load_machine(name).sip for name in ("h100-sxm", "a100-sxm-80g", "l4"))


@pytest.mark.adr("0242-D1")
def test_sixteen_long_rows_of_a_layer_norm_take_what_is_published() -> None:
    """KernelBench level1/40 at 6e6fca9c: 16 rows of 4,194,304 floats, 8.1 ms on an H100."""
    launches = layer_norm(16, 4 << 20, 4, H100)
    assert milliseconds(launches, H100) == pytest.approx(8.1, rel=0.1)
    # A stream of its bytes: 45 times faster.
    assert H100.hbm_stream_ps(2 * 16 * (16 << 20)) / 1e9 < 8.1 / 40


@pytest.mark.adr("0242-D2")
@pytest.mark.parametrize(
    ("machine", "rows", "cols", "fixed_us", "measured_us"),
    [
        # neusight-vec, less what an eager launch adds to all its rows.
        ("l4", 16384, 4096, 12, 2264),
        ("l4", 32768, 16384, 12, 26037),
        ("a100-pcie-80g", 16384, 2048, 43, 204),
        ("a100-pcie-80g", 65536, 6400, 43, 3122),
        ("a100-pcie-80g", 65536, 16384, 43, 8007),
    ],
)
def test_a_layer_norm_reads_a_row_again_that_no_cache_holds(
    machine: str, rows: int, cols: int, fixed_us: float, measured_us: float
) -> None:
    sip = load_machine(machine).sip
    found_us = milliseconds(layer_norm(rows, cols, 4, sip), sip) * 1e3 + fixed_us
    assert found_us == pytest.approx(measured_us, rel=0.1)


def test_rows_are_read_once_or_twice_by_what_the_cache_holds() -> None:
    (short,), (longer,) = (layer_norm(65536, cols, 4, A100) for cols in (1024, 16384))
    assert short.hbm_read_bytes == 65536 * 1024 * 4
    assert longer.hbm_read_bytes == 2 * 65536 * 16384 * 4
    # Few rows are held, however long: 16 rows of 64 KiB take a MiB.
    (few,) = layer_norm(16, 16384, 4, A100)
    assert kept_share(16 * 65536, A100) == 1
    assert few.hbm_read_bytes == 16 * 16384 * 4


def test_rows_that_do_not_divide_have_two_launches() -> None:
    assert len(layer_norm(8, 1024, 4, H100)) == 1
    assert len(layer_norm(8, 1025, 4, H100)) == len(layer_norm(8, 1024, 8, H100)) == 2


@pytest.mark.parametrize(
    ("machine", "measured_ms"), [("h100-sxm", 8.52), ("h100-pcie", 14.3), ("l40s", 37.1)]
)
def test_a_softmax_of_long_rows_reads_them_three_times(machine: str, measured_ms: float) -> None:
    """KernelBench level1/23 at 6e6fca9c, 3396fc0c and 4082b873: 4096 rows of 393,216 floats."""
    sip = load_machine(machine).sip
    launch = softmax(4096, 393216, 4, sip)
    assert launch.hbm_read_bytes == 3 * 4096 * 393216 * 4
    assert milliseconds([launch], sip) == pytest.approx(measured_ms, rel=0.05)


@pytest.mark.adr("0242-D2")
@pytest.mark.parametrize(
    ("cols", "rows", "measured_us"),
    [
        (1280, 65536, 680), (1600, 65536, 903), (2048, 65536, 841),
        (2560, 65536, 1267), (4096, 65536, 1692), (6400, 65536, 2606),
    ],
)  # fmt: skip
def test_an_early_softmax_waits_for_what_is_no_multiple_of_its_block(
    cols: int, rows: int, measured_us: float
) -> None:
    """neusight-vec on an A100 of 40 GB, less 27 us that an eager launch adds."""
    sip = load_machine("a100-sxm-40g").sip
    found_us = milliseconds([softmax(rows, cols, 4, sip, is_early=True)], sip) * 1e3 + 27
    assert found_us == pytest.approx(measured_us, rel=0.1)


def test_what_fits_in_shared_memory_is_read_once_from_release_2_4_on() -> None:
    newer, early = (softmax(65536, 8192, 4, L4, is_early=flag) for flag in (False, True))
    assert len(newer.sweeps) == 1
    assert len(early.sweeps) == 3
    assert newer.hbm_read_bytes == 65536 * 8192 * 4 <= early.hbm_read_bytes


def test_a_gradient_is_read_twice_and_the_result_once() -> None:
    size = 4096 * 393216 * 4
    (of_log,) = softmax_backward(4096, 393216, 4, H100, of_log=True)
    assert of_log.hbm_read_bytes == 3 * size
    multiplied, _ = softmax_backward(4096, 393216, 4, H100, of_log=False)
    assert (multiplied.hbm_read_bytes, multiplied.hbm_written_bytes) == (2 * size, size)


def test_threads_share_a_slice_where_slices_are_few() -> None:
    assert spatial_softmax(8, 256, 1024, 4, H100).threads == 1024
    few = spatial_softmax(8, 4096, 32, 4, H100)
    assert (few.blocks, few.threads) == (8, 1024)
    assert few.hbm_read_bytes == 8 * 4096 * 32 * 4
