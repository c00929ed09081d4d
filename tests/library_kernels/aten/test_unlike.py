"""Elementwise operations of unlike operands: an element of each thread under way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.hardware import load_machine
from kernbench.library_kernels.aten import unlike
from tests.library_kernels.aten.measured import milliseconds

A100, H100 = load_machine("a100-sxm-40g").sip, load_machine("h100-sxm").sip


@pytest.mark.parametrize(
    ("fewer", "more", "measured_us"),
    [(1_048_576, 8_388_608, 53.87 - 15.12), (8_388_608, 67_108_864, 362.46 - 53.87)],
)
def test_conversions_take_as_long_as_measured_on_an_a100(
    fewer: int, more: int, measured_us: float
) -> None:
    """What more bfloat16 to float32 take, before pull request 195542 of PyTorch."""
    few, many = (
        milliseconds([unlike(item, 2.0 * item, 4.0 * item)], A100) for item in (fewer, more)
    )
    assert (many - few) * 1e3 == pytest.approx(measured_us, rel=0.15)


@pytest.mark.parametrize(("rows", "cols", "measured_ms"), [(32768, 65535, 10.1 - 2.77)])
def test_a_broadcast_division_does_not_stream(rows: int, cols: int, measured_ms: float) -> None:
    """KernelBench level1/39 at 6e6fca9c, an H100, less a norm at 3.1 TB/s."""
    size = rows * cols * 4
    found_ms = milliseconds([unlike(rows * cols, size + rows * 4, size)], H100)
    assert found_ms == pytest.approx(measured_ms, rel=0.1)
    assert found_ms > 1.1 * H100.hbm_stream_ps(2 * size) / 1e9


@given(st.integers(1, 10**9), st.integers(1, 8), st.integers(1, 8))
def test_no_launch_beats_its_bytes(elements: int, read: int, written: int) -> None:
    found_ms = milliseconds([unlike(elements, read * elements, written * elements)], A100)
    assert found_ms >= A100.hbm_stream_ps((read + written) * elements) / 1e9


def test_narrow_elements_wait_and_wide_ones_stream() -> None:
    elements, sip = 1 << 28, load_machine("a100-sxm-80g").sip
    halves, doubles = (
        milliseconds([unlike(elements, size * elements, size * elements)], sip) for size in (2, 8)
    )
    # A quarter of the bytes, but as many loads.
    assert doubles < 2.5 * halves
    assert doubles == pytest.approx(sip.hbm_stream_ps(16 * elements) / 1e9, rel=0.15)
