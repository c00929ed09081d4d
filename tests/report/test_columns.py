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
    kernel = dict.fromkeys(_WithWaves.__annotations__, 100) | {
        "name": "k",
        "waves": 3,
        "group": "unseen",
    }
    out = io.StringIO()
    Console(file=out, width=200).print(_rows(_WithWaves, [kernel], PEAKS, 200))
    head, _, line, *_ = out.getvalue().splitlines()
    assert head.split()[-3:] == ["bound", "by", "waves"]
    words = line.split()
    assert (words[0], words[-3:]) == ("k", ["100", "3", "w"])
    assert "unseen" not in words


def test_every_column_reads_keys_that_its_part_of_the_report_has() -> None:
    for kind in (RankReport, KernelReport, CollectiveReport):
        row = dict.fromkeys(kind.__annotations__, 1)
        columns = columns_of(kind)
        assert columns
        for column in columns:
            numbers = column.numbers(row, PEAKS)
            assert column.text(numbers, True)
            assert column.text(numbers, False)
