"""The lanes of a timeline have what the log has, up to how much may be drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernbench.analysis import critical_path
from kernbench.hardware import load_machine
from kernbench.op_log import OpLog
from kernbench.page.lanes import LEAST_OF_LANE, timeline
from tests.logs import LogBuilder, kernel, ring, small_log
from tests.page.runs import simulated, two_layers
from tests.page.test_packing import unpacked


def shown(log: OpLog, ranks: int = 2, **settings: Any) -> dict[str, Any]:
    return timeline(log, load_machine("ahbm", ranks), critical_path(log), **settings)


def slices(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Every slice with its lane and its absolute times, as the browser has them."""
    columns = unpacked(found["slices"])
    places = iter(zip(*columns.values(), strict=True))
    listed = []
    for lane in found["lanes"]:
        end = 0
        for _ in range(lane["count"]):
            row = dict(zip(columns, next(places), strict=True))
            start = end + row["gap"]
            end = start + row["duration"]
            name = found["things"][row["thing"]]["name"]
            listed.append({**row, "lane": lane, "start": start, "end": end, "name": name})
    assert next(places, None) is None
    return listed


@pytest.mark.adr("0158-D3")
def test_every_launch_of_every_rank_is_a_slice_of_its_stream() -> None:
    log = small_log()
    found = slices(shown(log))
    expected = {
        (rank, each.stream, each.template.name, start_ps, end_ps, each.launch_id)
        for each in log.instances
        for rank, start_ps, end_ps in zip(each.ranks, each.starts_ps, each.ends_ps, strict=True)
    }
    streams = [each for each in found if each["lane"]["kind"] == "stream"]
    assert len(streams) == len(expected)
    assert expected == {
        (*(each["lane"][key] for key in ("rank", "label")),
         *(each[key] for key in ("name", "start", "end", "launch")))
        for each in streams
    }  # fmt: skip
    hosts = [each for each in found if each["lane"]["kind"] == "host"]
    assert sum(each["duration"] for each in hosts) == sum(
        span.end_ps - span.start_ps for span in log.host_spans
    )


def test_a_rank_that_comes_early_is_shown_waiting() -> None:
    collective = [each for each in slices(shown(small_log())) if each["name"] == "all_gather"]
    late = {each["lane"]["rank"]: each["late"] for each in collective if each["launch"]}
    assert late == {0: 50_000, 1: 0}


@pytest.mark.adr("0158-D3")
def test_more_launches_than_can_be_drawn_are_joined_and_counted() -> None:
    builder = LogBuilder()
    template, launches = kernel(duration_ps=3_000), 4 * LEAST_OF_LANE
    for place in range(launches):
        builder.launch(template, 0, 10_000 + 5_000 * place + (place % 7) * 300)
    found = shown(builder.log, 1, most=10)
    streams = [each for each in slices(found) if each["lane"]["kind"] == "stream"]
    assert len(streams) == LEAST_OF_LANE
    assert sum(each["count"] for each in streams) == launches
    assert streams[-1]["end"] == builder.log.end_ps
    # Nothing is said to be idle that is not, and the page says that slices are joined.
    assert sum(each["duration"] for each in streams) >= launches * 3_000
    assert found["joined"] == 2 * launches


def test_a_link_is_as_busy_as_the_log_says() -> None:
    builder = LogBuilder()
    builder.collective(ring(4), range(4), [0] * 4)
    builder.launch(kernel(duration_ps=300_000), 0, 700_000)
    found = shown(builder.log, 4)["links"]
    share = np.array(unpacked(found["busy"])["share"]).reshape(-1, found["bins"]) / found["full"]
    busy_ps = share.mean(axis=1) * builder.log.end_ps
    assert found["names"][0] == "sip0->sip1"
    assert busy_ps[:4] == pytest.approx(3 * 100_000, rel=0.01)


def test_the_commands_of_a_kernel_are_kept_once() -> None:
    builder = LogBuilder()
    for place in range(5):
        builder.launch(kernel_once, 0, 2_000_000 * place)
    engines = shown(builder.log, 1)["engines"]
    rows = unpacked(engines["slices"])
    named = [engines["names"][engine] for engine in rows["engine"]]
    assert list(zip(named, rows["start"], rows["duration"], strict=True)) == [
        ("dma_in", 0, 666_666), ("gemm", 333_333, 333_333), ("dma_out", 666_666, 333_334),
    ]  # fmt: skip


kernel_once = kernel()


def test_an_empty_run_has_an_empty_timeline() -> None:
    found = shown(OpLog(), 1)
    assert (found["end_ps"], found["lanes"], found["slices"]["rows"]) == (0, [], 0)


def test_a_host_is_known_to_have_launched_what_it_launched(tmp_path: Path) -> None:
    run = simulated(tmp_path / "a.run", two_layers, 2)
    lanes = slices(timeline(run.log, run.machine, critical_path(run.log)))
    ran = {(each["lane"]["rank"], each["launch"]) for each in lanes if each["launch"]}
    spans = [each for each in run.log.host_spans if each.kind == "launch"]
    host = [each for each in lanes if each["lane"]["kind"] == "host" and each["launch"]]
    assert len(host) == len(spans)
    assert {(each["lane"]["rank"], each["launch"]) for each in host} == ran
    # A device begins when the host's launch has ended, or behind what it waits for.
    starts = {(e["lane"]["rank"], e["launch"]): e for e in lanes if e["lane"]["kind"] == "stream"}
    for each in host:
        assert each["end"] <= starts[each["lane"]["rank"], each["launch"]]["start"]
    for each in starts.values():
        if each["after"]:
            assert starts[each["lane"]["rank"], each["after"]]["end"] <= each["start"]
