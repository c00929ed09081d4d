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


def slices(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Every slice with its lane and its absolute times, as the browser has them."""
    columns = unpacked(result["slices"])
    places = iter(zip(*columns.values(), strict=True))
    listed = []
    for lane in result["lanes"]:
        end = 0
        for _ in range(lane["count"]):
            row = dict(zip(columns, next(places), strict=True))
            start = end + row["gap"]
            end = start + row["duration"]
            name = result["things"][row["thing"]]["name"]
            listed.append({**row, "lane": lane, "start": start, "end": end, "name": name})
    assert next(places, None) is None
    return listed


@pytest.mark.adr("0158-D3")
def test_every_launch_of_every_rank_is_a_slice_of_its_stream() -> None:
    log = small_log()
    result = slices(shown(log))
    expected = {
        (rank, instance.stream, instance.template.name, start_ps, end_ps, instance.launch_id)
        for instance in log.instances
        for rank, start_ps, end_ps in zip(
            instance.ranks, instance.starts_ps, instance.ends_ps, strict=True
        )
    }
    streams = [item for item in result if item["lane"]["kind"] == "stream"]
    assert len(streams) == len(expected)
    assert expected == {
        (*(stream["lane"][key] for key in ("rank", "label")),
         *(stream[key] for key in ("name", "start", "end", "launch")))
        for stream in streams
    }  # fmt: skip
    hosts = [item for item in result if item["lane"]["kind"] == "host"]
    assert sum(host["duration"] for host in hosts) == sum(
        span.end_ps - span.start_ps for span in log.host_spans
    )


def test_a_rank_that_comes_early_is_shown_waiting() -> None:
    collective = [item for item in slices(shown(small_log())) if item["name"] == "all_gather"]
    late = {item["lane"]["rank"]: item["late"] for item in collective if item["launch"]}
    assert late == {0: 50_000, 1: 0}


@pytest.mark.adr("0158-D3")
def test_more_launches_than_can_be_drawn_are_joined_and_counted() -> None:
    builder = LogBuilder()
    template, launches = kernel(duration_ps=3_000), 4 * LEAST_OF_LANE
    for place in range(launches):
        builder.launch(template, 0, 10_000 + 5_000 * place + (place % 7) * 300)
    result = shown(builder.log, 1, most=10)
    streams = [item for item in slices(result) if item["lane"]["kind"] == "stream"]
    assert len(streams) == LEAST_OF_LANE
    assert sum(stream["count"] for stream in streams) == launches
    assert streams[-1]["end"] == builder.log.end_ps
    # Nothing is said to be idle that is not, and the page says that slices are joined.
    assert sum(stream["duration"] for stream in streams) >= launches * 3_000
    assert result["joined"] == 2 * launches


def test_a_link_is_as_busy_as_the_log_says() -> None:
    builder = LogBuilder()
    builder.collective(ring(4), range(4), [0] * 4)
    builder.launch(kernel(duration_ps=300_000), 0, 700_000)
    result = shown(builder.log, 4)["links"]
    share = np.array(unpacked(result["busy"])["share"]).reshape(-1, result["bins"]) / result["full"]
    busy_ps = share.mean(axis=1) * builder.log.end_ps
    assert result["names"][0] == "sip0->sip1"
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
    result = shown(OpLog(), 1)
    assert (result["end_ps"], result["lanes"], result["slices"]["rows"]) == (0, [], 0)


def test_a_host_is_known_to_have_launched_what_it_launched(tmp_path: Path) -> None:
    run = simulated(tmp_path / "a.run", two_layers, 2)
    lanes = slices(timeline(run.log, run.machine, critical_path(run.log)))
    ran = {(lane["lane"]["rank"], lane["launch"]) for lane in lanes if lane["launch"]}
    spans = [host_span for host_span in run.log.host_spans if host_span.kind == "launch"]
    host = [lane for lane in lanes if lane["lane"]["kind"] == "host" and lane["launch"]]
    assert len(host) == len(spans)
    assert {(item["lane"]["rank"], item["launch"]) for item in host} == ran
    # A device begins when the host's launch has ended, or behind what it waits for.
    starts = {(e["lane"]["rank"], e["launch"]): e for e in lanes if e["lane"]["kind"] == "stream"}
    for item in host:
        assert item["end"] <= starts[item["lane"]["rank"], item["launch"]]["start"]
    for start in starts.values():
        if start["after"]:
            assert starts[start["lane"]["rank"], start["after"]]["end"] <= start["start"]
