"""What a notebook shows of tensors, machines, runs, reports and logs."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kernbench.runtime_api import RuntimeContext
from tests.page.browser import MISSING, browser


def texts_of(shown: Any) -> list[str]:
    """Return the texts in what an object shows, whose tags must match."""
    texts: list[str] = []
    open_tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

        def handle_data(self, data: str) -> None:
            texts.append(data)

    Reader().feed(shown._repr_html_())
    assert not open_tags
    return texts


def test_what_a_notebook_shows_has_what_it_is_of() -> None:
    with RuntimeContext("h100-sxm:2", ranks=2) as torch:
        x = torch.arange(24).reshape(2, 12) * 2.0
        # Eight of twelve columns, which is said.
        assert texts_of(x) == ["tensor (2, 12) torch.float32 on h100-sxm:0"] + [
            "\u2026" if column == 8 else str(2 * (row * 12 + column))
            for row in range(2)
            for column in range(9)
        ]
        column = torch.arange(9).reshape(9, 1) + 123456789012
        assert texts_of(column)[1:] == [
            *(str(123456789012 + index) for index in range(8)),
            "\u2026",
        ]
        assert texts_of(torch.tensor([True, False]))[1:] == ["True", "False"]
        assert "us so far" in texts_of(torch)[0]
        assert "(0,)" in texts_of(torch.zeros(0))[0]
        assert "[[[1.]]]" in texts_of(torch.ones(1, 1, 1))[0]
    report = torch.report()
    assert json.loads(json.dumps(report)) == report
    for shown in (report, torch):
        assert "mul" in "".join(texts_of(shown))
    assert "3350" in texts_of(torch.machine)
    log = texts_of(torch.op_log)
    assert log[0].startswith(f"{len(torch.op_log)} launches, ")
    assert "start_ns" in log or "start_ps" in log
    columns = torch.op_log.to_arrow().column_names
    assert log[1 : len(columns) + 1] == columns
    assert log[-1] == "the first 10"
    assert texts_of(RuntimeContext().op_log) == ["0 launches, 0 commands"]
    with RuntimeContext(data=False) as torch:
        assert "no data" in texts_of(torch.ones(2))[0]


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_what_a_notebook_shows_stays_inside_its_cell(tmp_path: Path) -> None:
    with RuntimeContext("h100-sxm:2") as torch:
        shown: list[Any] = [torch.ones(40, 40), torch.ones(2, 2, 2), torch.machine, torch.op_log]
        html = [item._repr_html_() for item in shown]
        more: list[Any] = [torch, torch.report(), torch.op_log]
    html += [item._repr_html_() for item in more]
    page = tmp_path / "cells.html"
    cells = "".join(f"<section>{item}</section>" for item in html)
    page.write_text(f"<!doctype html><meta charset=utf-8><body style='width:900px'>{cells}")
    with browser() as window:
        window.size(1000, 900)
        window.open(page)
        sizes = window.run(
            "return [...document.querySelectorAll('section')].map((each) =>"
            " [each.scrollWidth, each.getBoundingClientRect().height])"
        )
        assert window.console() == []
    assert len(sizes) == len(html)
    assert all(width <= 900 and height > 15 for width, height in sizes)
