"""One file that loads nothing, in which texts of programs are nothing but texts."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kernbench.page import dump_page
from kernbench.saved import SavedRun
from tests.logs import LogBuilder, kernel
from tests.page.runs import kept, simulated, two_layers

EVIL = "</script><script>window.taken = 1</script><img src=x onerror='window.taken = 1'>\"'&\u2028"


class Document(HTMLParser):
    """The elements of a page, and the texts of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] == "script" and data.strip():
            self.scripts.append(data)


def page_of(run: SavedRun, before: SavedRun | None = None) -> str:
    out = io.BytesIO()
    dump_page(out, run, before)
    return out.getvalue().decode()


def data_of(page: str) -> Any:
    result = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert result is not None
    return json.loads(result[1])


def evil_run(path: Path) -> SavedRun:
    builder = LogBuilder()
    builder.launch(kernel(EVIL), 0, 1_000_000)
    return kept(path, builder.log, 1, program=EVIL)


@pytest.mark.adr("0158-D1")
def test_a_page_loads_nothing_and_runs_only_its_own_scripts(tmp_path: Path) -> None:
    document = Document(page_of(evil_run(tmp_path / "run")))
    data, *scripts = document.scripts
    assert json.loads(data)["about"]["program"] == EVIL
    policy = next(
        attributes["content"]
        for tag, attributes in document.elements
        if tag == "meta" and "http-equiv" in attributes
    )
    assert policy is not None
    hashes = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert "default-src 'none'" in policy
    for tag, attributes in document.elements:
        assert tag not in ("img", "link", "iframe")
        assert not attributes.keys() & {"src", "srcset", "onerror", "onload", "action"}


@pytest.mark.adr("0158-D2")
def test_the_libraries_are_in_the_page_with_their_licences(tmp_path: Path) -> None:
    page = page_of(evil_run(tmp_path / "run"))
    for said in ("https://d3js.org v7.", "@observablehq/plot v0.6.", "Copyright 2010-2026 Mike",
                 "Permission to use, copy, modify"):  # fmt: skip
        assert said in page


def test_equal_runs_are_equal_pages(tmp_path: Path) -> None:
    run = simulated(tmp_path / "run", two_layers)
    assert page_of(run) == page_of(run)


def test_the_numbers_of_a_page_are_those_of_the_run(tmp_path: Path) -> None:
    run = simulated(tmp_path / "run", two_layers)
    data = data_of(page_of(run))
    assert data["about"]["time_ps"] == run.log.end_ps
    for rank in range(2):
        assert sum(times[rank] for times in data["times"]["by_rank"]) == run.log.end_ps
    kernels = {item["name"]: item for item in data["kernels"]["kernels"]}
    assert kernels.keys() == {item["name"] for item in run.report["kernels"]}
    for shown in kernels.values():
        timed = [line.get("time_ns", 0) for file in shown["files"] for line in file["lines"]]
        assert sum(timed) == pytest.approx(shown["time_ns"])
    (product,) = (
        line
        for file in kernels["matmul"]["files"]
        for line in file["lines"]
        if "tl.dot" in line.get("text", "")
    )
    assert product["flops"] == kernels["matmul"]["flops"] == 5 * 2 * 256**3
    # While it is busy, an engine is at most as fast as its peak.
    roofs = data["kernels"]["roofs"]
    rate = product["flops"] / product["busy_ns"] * roofs["num_pes"]
    half = next(item for item in roofs["matrix"] if item["dtype"] == "float16")
    assert 0 < rate <= half["flops_per_ns"]


def test_two_runs_have_a_part_on_what_changed_that_adds_up(tmp_path: Path) -> None:
    before = simulated(tmp_path / "a", two_layers)
    builder = LogBuilder()
    builder.launch(kernel(), 0, 1_000_000)
    after = kept(tmp_path / "b", builder.log, 1)
    changes = data_of(page_of(after, before))["changes"]
    assert changes["before_ns"] == before.log.end_ps / 1000
    assert sum(item["difference_ns"] for item in changes["contributions"]) == pytest.approx(
        changes["after_ns"] - changes["before_ns"]
    )
    assert data_of(page_of(after))["changes"] is None
