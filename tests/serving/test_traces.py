"""Recorded traces: the columns of two that are public, and tables with holes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.errors import UsageError
from kernbench.serving import ServingLoad, read_trace

BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118.5,GPT-4,417,276,693,Conversation log
"""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:00,879,55
"""


def write(path: Path, text: str) -> Path:
    (path / "trace.csv").write_text(text)
    return path / "trace.csv"


def test_columns_of_burstgpt_are_read(tmp_path: Path) -> None:
    rows = read_trace(write(tmp_path, BURST))
    assert rows == [(5.0, 472, 18), (45.0, 1087, 230), (118.5, 417, 276)]
    load = ServingLoad.recorded("trace", rows)
    assert [request.arrival_s for request in load.requests] == [0, 40, 113.5]


def test_columns_of_azure_are_read_to_a_part_of_a_second(tmp_path: Path) -> None:
    load = ServingLoad.recorded("trace", read_trace(write(tmp_path, AZURE), most=2))
    assert [request.arrival_s for request in load.requests] == pytest.approx(
        [0, 4.314579], abs=1e-6
    )
    assert [request.output_tokens for request in load.requests] == [44, 109]


def test_holes_are_named_with_their_lines_and_left_out_on_request(tmp_path: Path) -> None:
    path = write(tmp_path, f"{BURST}200,ChatGPT,,7,7,API log\n210,ChatGPT,9,0,9,API log\n")
    expected = (
        r"trace\.csv has holes: line 5: no Request tokens; line 6: Response tokens is 0; "
        "--skip-holes"
    )
    with pytest.raises(UsageError, match=expected):
        read_trace(path)
    assert len(read_trace(path, skips_holes=True)) == 3


def test_a_table_of_other_columns_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="its columns are a, b, but columns of traces: BurstGPT's"):
        read_trace(write(tmp_path, "a,b\n1,2\n"))


def test_a_trace_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no request"):
        read_trace(write(tmp_path, AZURE.splitlines()[0] + "\n"))
