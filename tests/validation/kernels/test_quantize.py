"""Quantisation of activations: bytes of its passes against closed forms."""

from hypothesis import given
from hypothesis import strategies as st

from kernbench.hardware import KernelConstants, load_machine
from kernbench.library_kernels import time_kernel
from validation.kernels import missed_again, quantize_rows, scale_and_quantize_rows

SIZES = st.integers(1, 700)


@given(SIZES, SIZES)
def test_quantising_reads_two_bytes_and_writes_what_it_is_told(rows: int, cols: int) -> None:
    kernel = quantize_rows("q", rows, cols, 1.0)
    assert kernel.hbm_bytes == kernel.port_bytes == 3.0 * rows * cols
    assert quantize_rows("q", rows, cols, 1.0, cold=0.0).hbm_bytes == 0.0


@given(SIZES, SIZES, st.sampled_from([0.0, 0.5, 1.0]))
def test_a_scale_per_row_reads_the_row_twice(rows: int, cols: int, missed: float) -> None:
    one, two = (
        quantize_rows("q", rows, cols, 1.0),
        scale_and_quantize_rows("q", rows, cols, 1.0, 1.0, missed),
    )
    assert two.port_bytes - one.port_bytes == 2.0 * rows * cols
    assert two.hbm_bytes - one.hbm_bytes == 2.0 * rows * cols * missed
    plain, sip = KernelConstants(source="assumed: a test"), load_machine("h200").sip
    assert time_kernel(two, sip, plain).total_us >= time_kernel(one, sip, plain).total_us


def test_rows_between_their_passes_stay_as_long_as_the_cache_holds_them() -> None:
    # 8 rows on each of 10 PEs, 2 bytes an element: 160 bytes a column.
    assert missed_again(1000, 100, num_pes=10, held_bytes=16000) == 0.0
    assert missed_again(1000, 150, num_pes=10, held_bytes=16000) == 0.5
    assert missed_again(1000, 400, num_pes=10, held_bytes=16000) == 1.0
    assert missed_again(8, 400, num_pes=10, held_bytes=16000) == 0.0
