"""The mean of a negative log-likelihood is one block's work."""

import pytest

from kernbench.hardware import load_machine
from kernbench.library_kernels import wait_us
from kernbench.library_kernels.aten import nll_loss
from tests.library_kernels.aten.measured import milliseconds

A100, H100 = load_machine("a100-sxm-80g").sip, load_machine("h100-sxm").sip


@pytest.mark.adr("0242-D1")
def test_a_warp_goes_over_the_batch_by_itself_before_release_2_8() -> None:
    """TritonBench's fused_cross_entropy_log_softmax on an A100: 8,388,608 and 4,194,304 rows."""
    more, fewer = (milliseconds([nll_loss(rows, by_few=True)], A100) for rows in (1 << 23, 1 << 22))
    streams_ms = 2 * 2 * (1 << 22) * 128 * 4 / (0.88 * 2039e6)
    assert more - fewer == pytest.approx(279.148 - 139.711 - streams_ms, rel=0.25)
    # Labels, then what they choose: two round trips for each 32 rows.
    assert more - fewer == pytest.approx((1 << 22) / 32 * 2 * wait_us(A100) / 1e3, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "threads"), [(100, 32), (512, 32), (4096, 256), (32768, 1024), (1 << 20, 1024)]
)
def test_later_it_has_as_many_threads_as_rows_ask_for(rows: int, threads: int) -> None:
    """2 to the rounded binary logarithm of a sixteenth of the rows, from 32 to 1024."""
    assert nll_loss(rows, by_few=False).threads == threads
    assert nll_loss(rows, by_few=True).threads == 32
