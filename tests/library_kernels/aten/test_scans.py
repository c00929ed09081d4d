"""Scans of rows take what is published."""

import pytest

from kernbench.hardware import load_machine
from kernbench.library_kernels.aten import scan
from tests.library_kernels.aten.measured import milliseconds

H100 = load_machine("h100-sxm").sip


@pytest.mark.parametrize(
    ("machine", "measured_ms"),
    [("h100-sxm", 4.69), ("h100-pcie", 7.33), ("l40s", 18.5)],
)
def test_many_long_rows_are_read_in_short_runs(machine: str, measured_ms: float) -> None:
    """KernelBench level1/90 at 6e6fca9c, 3396fc0c, 4082b873: 32,768 x 32,768 floats."""
    sip = load_machine(machine).sip
    launch = scan(32768, 32768, 1, 4, 4)
    assert milliseconds([launch], sip) == pytest.approx(measured_ms, rel=0.12)


@pytest.mark.adr("0242-D1")
def test_a_row_is_scanned_part_by_part_by_its_block() -> None:
    """Closed form: 128 rows of 4096, 128 threads each; a row twice as long takes twice as long."""
    few, longer = (scan(128, cols, 1, 4, 4) for cols in (4096, 8192))
    assert few.blocks == longer.blocks == 32
    more = scan(64, 4096, 1, 4, 4)
    short_ms, long_ms, fewer_ms = (milliseconds([item], H100) for item in (few, longer, more))
    assert long_ms > 1.7 * short_ms - 0.003
    assert fewer_ms <= short_ms


def test_columns_are_scanned_by_a_thread_each() -> None:
    launch = scan(4, 100, 1000, 4, 12)
    assert (launch.threads, launch.blocks) == (512, 8)
    assert launch.hbm_written_bytes == 3 * launch.hbm_read_bytes
