"""Pages in a real browser: what is drawn, what a click shows, what the console says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernbench.op_log import HostRange
from kernbench.page import dump_page
from tests.logs import LogBuilder, kernel, ring
from tests.page.browser import MISSING, Browser, browser
from tests.page.runs import kept, simulated, two_layers, write_page
from tests.page.test_document import evil_run

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

SETTLED = """
    for (let i = 0; i < 500 && !document.documentElement.dataset.ready; i++)
        await new Promise((resolve) => setTimeout(resolve, 20));
    return document.documentElement.dataset.ready === "true";
"""
DRAWN = """
    const [id] = arguments;
    document.getElementById(id).scrollIntoView();
    for (let i = 0; i < 200 && !document.getElementById(id).dataset.drawn; i++)
        await new Promise((resolve) => setTimeout(resolve, 20));
    return document.getElementById(id).querySelectorAll("rect, path, circle, div").length;
"""
INKED = """
    const canvas = document.querySelector("#lanes canvas");
    kernbench.timeline.drawNow();
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const found = new Set();
    for (let i = 0; i < pixels.length; i += 4) found.add((pixels[i] << 16) | (pixels[i + 1] << 8) | pixels[i + 2]);
    return [...found].map((each) => "#" + each.toString(16).padStart(6, "0"));
"""  # noqa: E501
LAUNCH = """
    const [name, rank] = arguments;
    const { model } = kernbench.timeline;
    for (const lane of model.lanes) {
        const index = [...lane.thing].findIndex((thing) => model.things[thing].name === name);
        if (lane.rank === rank && lane.kind === "stream" && index >= 0) {
            document.getElementById("lanes").scrollIntoView();
            return kernbench.timeline.reveal(rank, lane.launch[index]);
        }
    }
"""


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as result:
        result.size(1300, 900)
        yield result


def opened(window: Browser, page: Path) -> Browser:
    window.console()
    window.open(page)
    assert window.run(SETTLED)
    return window


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_picture_is_drawn_and_the_console_is_silent(
    window: Browser, tmp_path: Path, theme: str
) -> None:
    before = simulated(tmp_path / "a", two_layers)
    after = simulated(tmp_path / "b", two_layers, ranks=4)
    opened(window, write_page(tmp_path / "page.html", after, before))
    if window.run("return document.documentElement.dataset.theme") != theme:
        window.run("window.scrollTo(0, 0)")
        window.click("#theme")
    for picture in ("overview", "change-bars", "rank-bars", "roofs", "matrix", "memory-curve"):
        assert window.run(DRAWN, picture) > 3, picture
    colors = window.run(INKED)
    assert {"#5b4bb5", "#8477d9"} & {*colors}  # of the longest kernel
    assert "#e69f00" in colors  # of collectives
    assert ("#14181d" in colors) == (theme == "dark")  # its background
    shown = window.run("return document.body.innerText")
    for said in ("What changed", "What holds it up", "Time by rank", "Roofline", "Machine"):
        assert said in shown
    assert "NaN" not in shown
    assert "undefined" not in shown
    assert window.run("return document.querySelectorAll('[transform*=NaN], [d*=NaN]').length") == 0
    assert window.console() == []


NOT_DRAWN = """
    if (arguments[0]) dispatchEvent(new Event("beforeprint"));
    else
        for (let i = 0; i < 500 && document.querySelector(".chart:not([data-drawn])"); i++)
            await new Promise((resolve) => setTimeout(resolve, 20));
    return [...document.querySelectorAll(".chart:not([data-drawn])")].map((each) => each.id);
"""


@pytest.mark.parametrize("prints", [True, False])
def test_pictures_that_nobody_has_scrolled_to_are_drawn(
    window: Browser, tmp_path: Path, prints: bool
) -> None:
    run = simulated(tmp_path / "run", two_layers, machine="a100-sxm-80g")
    opened(window, write_page(tmp_path / "page.html", run))
    assert window.run("return document.querySelectorAll('.chart').length") > 3
    assert window.run(NOT_DRAWN, prints) == []
    assert window.run(
        "return document.getElementById('memory-curve').querySelector('svg') !== null"
    )
    assert window.console() == []


def test_a_click_on_a_kernel_shows_its_lines(window: Browser, tmp_path: Path) -> None:
    run = simulated(tmp_path / "run", two_layers)
    opened(window, write_page(tmp_path / "page.html", run))
    lines = "return [arguments[0].dataset.kernel, arguments[0].innerText]".replace(
        "arguments[0]", "document.getElementById('lines')"
    )
    window.click("tr[data-kernel=gelu]")
    assert window.run(lines)[0] == "gelu"
    place = window.run(LAUNCH, "matmul", 1)
    window.click_at(place["x"], place["y"])
    kernel_name, text = window.run(lines)
    assert kernel_name == "matmul"
    assert "tl.dot(a, b, acc" in text
    picked = window.run("return document.getElementById('picked').innerText")
    assert "matmul" in picked
    assert "rank 1" in picked
    # Lines of the chosen kernel in the roofline.
    window.run(DRAWN, "roofs")
    window.click("[data-roofs=lines]")
    assert "gemm.py:" in window.run("return document.getElementById('roofs').textContent")
    assert window.console() == []


def test_a_machine_that_says_what_it_draws_has_its_power_drawn(
    window: Browser, tmp_path: Path
) -> None:
    run = simulated(tmp_path / "run", two_layers, machine="a100-sxm-80g")
    opened(window, write_page(tmp_path / "page.html", run))
    for picture in ("energy-parts", "power-curve"):
        window.run("document.getElementById(arguments[0]).scrollIntoView()", picture)
        assert window.run(DRAWN, picture) > 3, picture
    assert "W on average" in window.run("return document.getElementById('energy').innerText")
    assert window.console() == []


def test_gains_are_listed_by_size(window: Browser, tmp_path: Path) -> None:
    run = simulated(tmp_path / "run", two_layers)
    result = {
        "what": "gelu takes no time",
        "detail": "8 launches",
        "gain_ns": 1500.0,
        "time_ns": 9000.0,
        "spent_ns": 2000.0,
        "held_up_by": "math",
        "name": "gelu",
        "rank": 1,
        "file": "/there/elementwise.py",
        "line": 74,
        "launches": [3],
        "errors": [{"family": "membound", "error_percent": 7.25, "rows": 9}],
    }
    findings = {"tried": 5, "findings": [result, {**result, "what": "less", "errors": []}]}
    page = tmp_path / "page.html"
    with page.open("wb") as out:
        dump_page(out, run, findings=findings)
    opened(window, page)
    rows = window.run("return [...document.querySelectorAll('#gains tr')].map((e) => e.innerText)")
    assert len(rows) == 3
    for said in ("gelu takes no time 8 launches", "1.50 µs", "elementwise.py:74", "membound 7.3 %"):
        assert said in rows[1]
    window.click("#gains a")
    assert window.run("return document.getElementById('lines').dataset.kernel") == "gelu"
    assert window.console() == []


def test_names_cannot_become_scripts(window: Browser, tmp_path: Path) -> None:
    run = evil_run(tmp_path / "run")
    opened(window, write_page(tmp_path / "page.html", run, run))
    for picture in ("rank-bars", "roofs"):
        window.run(DRAWN, picture)
    assert window.run("return window.taken === undefined")
    assert "<script>window.taken" in window.run("return document.body.innerText")
    assert window.console() == []


def test_zoom_shows_commands_and_rank_rows_open(window: Browser, tmp_path: Path) -> None:
    run = simulated(tmp_path / "run", two_layers)
    opened(window, write_page(tmp_path / "page.html", run))
    span = "const { from, to } = kernbench.timeline.view; return to - from;"
    whole = window.run(span)
    assert whole == run.log.end_ps
    window.run("kernbench.timeline.canvas.focus()")
    window.run(
        "kernbench.timeline.canvas.dispatchEvent(new KeyboardEvent('keydown', { key: 'w' }))"
    )
    assert window.run(span) == pytest.approx(0.6 * whole)
    rows = "return kernbench.timeline.rows.length"
    opened_rows = window.run(rows)
    window.run("kernbench.timeline.toggle('rank 0')")
    assert window.run(rows) < opened_rows
    assert window.console() == []


@pytest.mark.adr("0158-D3")
def test_a_million_launches_are_drawn_within_a_frame_or_two(
    window: Browser, tmp_path: Path
) -> None:
    builder = LogBuilder()
    templates = [kernel(name, 900_000) for name in ("matmul", "gelu", "norm")]
    for rank in range(4):
        builder.launch(templates[0], rank, 1_000_000)
    builder.collective(ring(4), range(4), [2_000_000] * 4)
    page = write_page(tmp_path / "page.html", kept(tmp_path / "run", builder.log, 4))
    opened(window, page)
    # The same lanes with as many slices as 64 ranks of 300,000 launches would be.
    drawn_ms = window.run("""
        const { timeline } = kernbench;
        const count = 300000;
        const lane = { kind: "stream", label: "sip0", count };
        for (const name of ["start", "end", "reach", "late", "thing", "launch"]) lane[name] = new Float64Array(count);
        lane.merged = new Float64Array(count).fill(1);
        lane.busy = new Float64Array(count + 1);
        for (let i = 0; i < count; i++) {
            lane.start[i] = 1e6 * i;
            lane.reach[i] = lane.end[i] = lane.start[i] + 4e5 + (i % 7) * 8e4;
            lane.busy[i + 1] = lane.busy[i] + lane.end[i] - lane.start[i];
        }
        timeline.model.endPs = 1e6 * count;
        timeline.model.lanes = d3.range(64).map((rank) => ({ ...lane, rank }));
        timeline.ranks = d3.range(64);
        timeline.open.clear();
        timeline.layOut();
        timeline.show(0, Infinity);
        timeline.drawNow();
        const begin = performance.now();
        for (let i = 0; i < 3; i++) timeline.drawNow();
        return (performance.now() - begin) / 3;
    """)  # noqa: E501
    # Milliseconds on an idle machine; here tests run beside each other.
    assert drawn_ms < 1_000
    assert window.console() == []


CUT = """
    const cut = [];
    for (const box of document.querySelectorAll(".wide"))
        if (box.scrollWidth > box.clientWidth + 1) cut.push(box.textContent.slice(0, 40));
    for (const cell of document.querySelectorAll("td.number"))
        if (cell.scrollWidth > cell.clientWidth + 1) cut.push(cell.textContent);
    if (document.documentElement.scrollWidth > innerWidth + 1) cut.push("the page");
    return cut;
"""


def test_a_reader_picks_a_step_and_no_table_is_cut_on_a_phone(
    window: Browser, tmp_path: Path
) -> None:
    log = LogBuilder()
    name = "a_kernel_with_a_name_that_is_as_long_as_those_of_libraries_are_and_longer"
    for step, taken_ps in enumerate((9_000_000, 3_000_000, 4_000_000, 5_000_000)):
        begun_ps = 20_000_000 + 10_000_000 * step
        # A launch takes the host half a microsecond.
        log.launch(kernel(name, taken_ps - 500_000), 0, begun_ps + 500_000)
        named = HostRange(0, f"step {step}", begun_ps, begun_ps + taken_ps)
        log.log.host_ranges.append(named)
    page = write_page(tmp_path / "page.html", kept(tmp_path / "run", log.log, ranks=1))
    opened(window, page)
    try:
        for width in (1400, 420):
            window.size(width, 900)
            assert window.run(CUT) == [], width
        shown = "return [document.getElementById('time').textContent, kernbench.timeline.view.from]"
        # Of those behind the first, the median.
        assert window.run(shown)[0] == "4.00 \u00b5s"
        launches = "return document.querySelector('#kernels-table td.number')?.textContent"
        assert window.run(launches) == "1"
        pick = """
            const choice = document.getElementById("parts");
            choice.value = [...choice.options].find((each) => each.textContent.startsWith(arguments[0])).value;
            choice.dispatchEvent(new Event("change"));
            return document.getElementById("spent").textContent;
        """  # noqa: E501
        assert name in window.run(pick, "step 3")
        assert window.run(shown) == ["5.00 \u00b5s", 50_000_000]
        assert name not in window.run(pick, "start-up")
        assert window.run(launches) is None
        window.run(pick, "the whole run")
        assert window.run(launches) == "4"
        assert window.run(shown) == ["55.0 \u00b5s", 0]
        assert window.console() == []
    finally:
        window.size(1300, 900)


def four_ranks(folder: Path) -> Path:
    return write_page(folder / "page.html", simulated(folder / "a.run", two_layers, 4))


@pytest.mark.adr("0158-D3")
def test_ranks_are_filtered_and_arrows_lead_to_what_was_clicked_on(
    window: Browser, tmp_path: Path
) -> None:
    opened(window, four_ranks(tmp_path))
    shown = """
        const ranks = new Set(kernbench.timeline.rows.map((row) => row.rank));
        return [...ranks].filter((rank) => rank !== undefined);
    """
    typed = """
        const box = document.querySelector("#timeline input");
        box.value = arguments[0];
        box.dispatchEvent(new Event("input"));
        return box.getAttribute("aria-invalid");
    """
    assert window.run(shown) == [0, 1, 2, 3]
    assert window.run(typed, "1-2") == "false"
    assert window.run(shown) == [1, 2]
    assert window.run(typed, "7") == "true"
    assert window.run(shown) == [1, 2]
    assert window.run(typed, "") == "false"
    assert window.run(shown) == [0, 1, 2, 3]
    flows = """
        const { timeline } = kernbench;
        const lane = timeline.model.lanes.find((each) => each.label === "sip1");
        const found = [];
        for (let index = 0; index < lane.count; index++) {
            for (const [from, to] of timeline.flowsOf({ lane, index }))
                found.push([from.end, to.start, to.launch === lane.launch[index]]);
        }
        timeline.picked = { lane, index: 1 };
        timeline.drawNow();
        return [lane.count, found, timeline.flows.length];
    """
    count, result, drawn = window.run(flows)
    # Each has an arrow from its launch; time runs along all of them.
    assert sum(is_own for _, _, is_own in result) >= count
    assert all(end <= start for end, start, _ in result)
    assert drawn


def test_a_kernel_that_has_lines_is_chosen_before_longer_ones(
    window: Browser, tmp_path: Path
) -> None:
    run = simulated(tmp_path / "run", two_layers)
    assert run.report["kernels"][0]["name"] == "matmul"
    chosen = "return document.getElementById('lines').dataset.kernel"
    opened(window, write_page(tmp_path / "all.html", run))
    assert window.run(chosen) == "matmul"
    vars(run)["sources"] = {path: run.sources[path] for path in run.sources if "gemm" not in path}
    opened(window, write_page(tmp_path / "some.html", run))
    assert window.run(chosen) == "gelu"


def test_two_kernels_are_shown_side_by_side(window: Browser, tmp_path: Path) -> None:
    opened(window, four_ranks(tmp_path))
    rows = window.run("""
        const choice = document.querySelector("#lines select");
        choice.value = "0";
        choice.dispatchEvent(new Event("change"));
        const rows = [...document.querySelectorAll("#beside tr")];
        return rows.map((row) => row.innerText.split("\\t"));
    """)
    kernels = {item["name"] for item in window.run("return kernbench.data.kernels.kernels")}
    assert set(rows[0][1:]) <= kernels
    assert {"launches", "of peak", "held up by", "grid", "warps of a program"} <= {
        r[0] for r in rows
    }


def test_pictures_have_names_for_those_who_cannot_see_them(window: Browser, tmp_path: Path) -> None:
    opened(window, four_ranks(tmp_path))
    for name in ("rank-bars", "roofs", "matrix"):
        window.run(DRAWN, name)
    named = window.run("""
        const all = [...document.querySelectorAll(".chart svg")];
        const pictures = all.filter((svg) => svg.getBoundingClientRect().width > 200);
        return pictures.map((svg) => svg.getAttribute("aria-label"));
    """)
    assert len(named) >= 3
    assert all(named)
