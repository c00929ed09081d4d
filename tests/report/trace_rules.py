"""The rules of the trace-event format, as a reader of it would check them."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

Events = list[dict[str, Any]]


def read_checked(path: Path) -> Events:
    """Return a file's events after checking every rule."""

    def refuse(text: str) -> float:
        raise AssertionError(f"{text} is not JSON")

    trace = json.loads(path.read_text(), parse_constant=refuse)
    events: Events = trace["traceEvents"]
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in events:
        assert event["ph"] in "MXCsf", event
        assert isinstance(event["pid"], int)
        assert event["pid"] > 0
        if event["ph"] != "M":
            assert type(event["ts"]) in (int, float), event
            assert event["ts"] >= 0
            assert math.isfinite(event["ts"])
    check_names(events)
    check_slices(events)
    check_flows(events)
    check_counters(events)
    return events


def check_names(events: Events) -> None:
    named = [(e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M"]
    assert len(named) == len(set(named)), "a track is named once"
    processes = {pid for what, pid, _ in named if what == "process_name"}
    threads = {(pid, tid) for what, pid, tid in named if what == "thread_name"}
    for event in events:
        assert event["pid"] in processes, event
        if event["ph"] in "Xsf":
            assert (event["pid"], event["tid"]) in threads, event
    for event in events:
        if event["ph"] == "M":
            key = event["name"].split("_", 1)[1]
            assert isinstance(event["args"][key], str if key == "name" else int)


def nanoseconds(event: dict[str, Any], key: str) -> int:
    return round(float(event[key]) * 1000)


def slices_by_track(events: Events) -> dict[tuple[int, int], list[tuple[int, int]]]:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = nanoseconds(event, "ts")
            assert event["dur"] >= 0
            assert event["name"]
            tracks[event["pid"], event["tid"]].append((start, start + nanoseconds(event, "dur")))
    return tracks


def check_slices(events: Events) -> None:
    """Slices of a track lie apart or inside one another; they never cross."""
    for slices in slices_by_track(events).values():
        open_ends: list[int] = []
        for start, end in sorted(slices, key=lambda item: (item[0], -item[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], (start, end)
            open_ends.append(end)


def check_flows(events: Events) -> None:
    tracks = slices_by_track(events)
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            flows[event["id"]].append(event)
            at = nanoseconds(event, "ts")
            slices = tracks[event["pid"], event["tid"]]
            assert any(start <= at <= end for start, end in slices), event
    for pair in flows.values():
        first, last = pair
        assert (first["ph"], last["ph"]) == ("s", "f")
        assert last["bp"] == "e"
        assert first["ts"] <= last["ts"]
        assert (first["cat"], first["name"]) == (last["cat"], last["name"])


def check_counters(events: Events) -> None:
    for event in events:
        if event["ph"] == "C":
            assert event["args"]
            assert all(type(value) in (int, float) for value in event["args"].values())
