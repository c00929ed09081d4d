"""What a notebook shows of tensors, machines, runs, reports and logs."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

from kernbench.runtime_api import RuntimeContext


def texts_of(shown: Any) -> list[str]:
    """Return the texts in what an object shows, whose tags must match."""
    found: list[str] = []
    open_tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

        def handle_data(self, data: str) -> None:
            found.append(data)

    Reader().feed(shown._repr_html_())
    assert not open_tags
    return found


def test_what_a_notebook_shows_has_what_it_is_of() -> None:
    with RuntimeContext("h100-sxm:2", ranks=2) as torch:
        x = torch.arange(24).reshape(2, 12) * 2.0
        assert texts_of(x) == ["tensor (2, 12) torch.float32 on h100-sxm:0"] + [
            str(2 * (row * 12 + column)) for row in range(2) for column in range(8)
        ]
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
    with RuntimeContext(data=False) as torch:
        assert "no data" in texts_of(torch.ones(2))[0]
