from __future__ import annotations

import io
from typing import Annotated

from rich.console import Console

from kernbench.report import Peaks
from kernbench.report.columns import columns_of, shown_as
from kernbench.report.summary import CollectiveReport, KernelReport, RankReport
from kernbench.report.table import _rows

PEAKS = Peaks(flops_per_ns=1000.0, hbm_bytes_per_ns=100.0)


class _WithWaves(KernelReport):
    waves: Annotated[int, shown_as("waves", "waves", "{} w".format)]
    group: str


def test_a_field_is_a_column_where_its_entry_says_so() -> None:
    kernel: _WithWaves = {
        "name": "k",
        "launches": 2,
        "time_ns": 100,
        "flops": 0,
        "bytes": 0,
        "utilization": 0.5,
        "bound_by": "HBM",
        "waves": 3,
        "group": "unseen",
    }
    out = io.StringIO()
    Console(file=out, width=100).print(_rows(_WithWaves, [kernel], PEAKS, 100))
    head, _, line, *_ = out.getvalue().splitlines()
    assert head.split()[-3:] == ["bound", "by", "waves"]
    assert line.split() == ["k", "2", "100", "ns", "-", "-", "50.0%", "HBM", "3", "w"]


def test_every_column_reads_keys_that_its_part_of_the_report_has() -> None:
    for kind in (RankReport, KernelReport, CollectiveReport):
        row = dict.fromkeys(kind.__annotations__, 1)
        columns = columns_of(kind)
        assert columns
        for column in columns:
            numbers = column.numbers(row, PEAKS)
            assert column.text(numbers, True)
            assert column.text(numbers, False)
