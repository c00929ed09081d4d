"""The lanes of a timeline: what each host and each stream did, as columns, and what on it ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernbench.analysis import Segment
from kernbench.commands import PE_ENGINES, Engine
from kernbench.hardware import Machine
from kernbench.op_log import Column, OpLog, RowReader, Template
from kernbench.page.packing import packed
from kernbench.report import merged_slices

MOST_SLICES = 1_000_000
"""The most slices of all lanes of a page: what a browser draws without delay, in 8 MB."""
LEAST_OF_LANE = 500
MOST_ENGINE_SLICES = 200_000
LEAST_OF_ENGINE = 8
MOST_OF_ENGINE = 400
LINK_BINS = 1_200
MOST_OF_LINK = 20_000
_FULL = 255


@dataclass(slots=True)
class _Lane:
    """One host or stream of a rank; columns by slice."""

    rank: int
    kind: str
    """host or stream."""
    label: str
    start_ps: list[int] = field(default_factory=list)
    end_ps: list[int] = field(default_factory=list)
    late_ps: list[int] = field(default_factory=list)
    """For a collective, how long others had not come yet."""
    thing: list[int] = field(default_factory=list)
    launch: list[int] = field(default_factory=list)
    """The launch that it is, or that a host launches; 0: none, or not known."""
    after: list[int] = field(default_factory=list)
    """The launch that it waited for; 0: the host's."""

    def add(
        self,
        start_ps: int,
        end_ps: int,
        thing: int,
        launch: int = 0,
        late: int = 0,
        after: int = 0,
    ) -> None:
        self.after.append(after)
        self.start_ps.append(start_ps)
        self.end_ps.append(end_ps)
        self.thing.append(thing)
        self.launch.append(launch)
        self.late_ps.append(late)


class _Things:
    """What lanes show, each once: templates and labels of hosts."""

    def __init__(self) -> None:
        self.listed: list[dict[str, Any]] = []
        self.templates: list[Template | None] = []
        self._numbers: dict[Any, int] = {}

    def of_template(self, template: Template) -> int:
        number = self._numbers.get(template)
        if number is None:
            number = self._numbers[template] = len(self.listed)
            limits = template.limits_ps
            self.listed.append(
                {
                    "kind": template.kind,
                    "name": template.name,
                    "algorithm": template.algorithm,
                    "duration_ps": template.duration_ps,
                    "flops": template.flops,
                    "hbm_bytes": template.hbm_bytes,
                    "message_bytes": template.message_bytes,
                    "bound_by": max(limits, key=lambda key: limits[key]).value if limits else "",
                }
            )
            self.templates.append(template)
        return number

    def of_host(self, kind: str, label: str) -> int:
        number = self._numbers.get((kind, label))
        if number is None:
            number = self._numbers[kind, label] = len(self.listed)
            self.listed.append({"kind": kind, "name": label})
            self.templates.append(None)
        return number


def timeline(
    log: OpLog, machine: Machine, path: Sequence[Segment], most: int = MOST_SLICES
) -> dict[str, Any]:
    """Return the timeline of a run: lanes, critical path, commands of kernels, use of links.

    Args:
        log: What the run did.
        machine: Gives the names of links.
        path: The run's critical path.
        most: About how many slices may be drawn; of lanes that have more than their share,
            neighbours are joined over the shortest gaps.
    """
    things = _Things()
    drawn = _drawn(_lanes(log, things), most)
    segments = _path(path, things)
    return {
        "end_ps": log.end_ps,
        "things": things.listed,
        "lanes": drawn.pop("lanes"),
        "slices": packed(drawn.pop("slices")),
        **drawn,
        "path": packed(segments),
        "engines": _engine_slices(things),
        "links": _links(log, machine),
    }


def _lanes(log: OpLog, things: _Things) -> list[_Lane]:
    """Return the lanes by rank, its host first."""
    lanes: dict[tuple[int, int, str], _Lane] = {}
    launched = _launched(log)
    for number, span in enumerate(log.host_spans):
        if span.end_ps > span.start_ps:
            host = lanes.setdefault((span.rank, 0, ""), _Lane(span.rank, "host", "host"))
            thing = things.of_host(span.kind, span.label)
            host.add(span.start_ps, span.end_ps, thing, launched.get(number, 0))
    for instance in log.instances:
        thing = things.of_template(instance.template)
        last_ps = max(instance.starts_ps)
        befores = instance.after or (0,) * len(instance.ranks)
        for rank, start_ps, end_ps, before in zip(
            instance.ranks, instance.starts_ps, instance.ends_ps, befores, strict=True
        ):
            lane = lanes.get((rank, 1, instance.stream))
            if lane is None:
                lane = lanes[rank, 1, instance.stream] = _Lane(rank, "stream", instance.stream)
            late = min(last_ps, end_ps) - start_ps
            lane.add(start_ps, end_ps, thing, instance.launch_id, late, log.number_of(before))
    return [lanes[key] for key in sorted(lanes)]


def _launched(log: OpLog) -> dict[int, int]:
    """Return which launch each launching span of a host launched, by the span's place in the log.

    Spans are labelled with what they launch, and what has one name starts in the order in which it
    was launched. Where a host launched a name more or less often than it ran, as inside graphs, it
    is not known.
    """
    spans: dict[tuple[int, str], list[int]] = {}
    for number, span in enumerate(log.host_spans):
        if span.kind == "launch":
            spans.setdefault((span.rank, span.label), []).append(number)
    ran: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for instance in log.instances:
        for rank, start_ps in zip(instance.ranks, instance.starts_ps, strict=True):
            if (rank, instance.template.name) in spans:
                ran.setdefault((rank, instance.template.name), []).append(
                    (start_ps, instance.launch_id)
                )
    return {
        number: launch
        for key, launches in ran.items()
        if len(launches) == len(spans[key])
        for number, (_, launch) in zip(spans[key], sorted(launches), strict=True)
    }


def _drawn(lanes: Iterable[_Lane], most: int) -> dict[str, Any]:
    """Return the lanes, the columns of their slices one after another, and how many were joined."""
    lanes = list(lanes)
    room = max(LEAST_OF_LANE, most // max(len(lanes), 1))
    parts: list[dict[str, Column]] = []
    listed = []
    joined = 0
    for lane in lanes:
        columns = _columns(lane)
        if len(lane.thing) > room:
            columns = _joined(columns, room)
            joined += len(lane.thing)
        parts.append(columns)
        count = len(columns["duration"])
        listed.append({"rank": lane.rank, "kind": lane.kind, "label": lane.label, "count": count})
    names = ("gap", "duration", "late", "thing", "launch", "after", "count")
    none = np.zeros(0, dtype=np.int64)
    slices = {name: np.concatenate([none, *(part[name] for part in parts)]) for name in names}
    return {"lanes": listed, "slices": slices, "joined": joined}


def _columns(lane: _Lane) -> dict[str, Column]:
    start, end = (np.array(values, dtype=np.int64) for values in (lane.start_ps, lane.end_ps))
    order = np.lexsort((end, start))
    start, end = start[order], end[order]
    others = {
        name: np.array(values, dtype=np.int64)[order]
        for name, values in (
            ("late", lane.late_ps),
            ("thing", lane.thing),
            ("launch", lane.launch),
            ("after", lane.after),
        )
    }
    return {"start": start, "end": end, **others, **_gaps(start, end), "count": np.ones_like(start)}


def _gaps(start: Column, end: Column) -> dict[str, Column]:
    """Return what compresses better than times: from the end before to the start, and how long."""
    before = np.concatenate([np.zeros(1, dtype=np.int64), end[:-1]])
    return {"gap": start - before, "duration": end - start}


def _joined(columns: Mapping[str, Column], most: int) -> dict[str, Column]:
    slices = merged_slices(columns["start"], columns["end"], most)
    first = slices.first
    counts = slices.sums(columns["count"])
    return {
        **_gaps(slices.start_ps, slices.end_ps),
        "late": np.where(counts > 1, 0, columns["late"][first]),
        "thing": columns["thing"][first],
        "launch": columns["launch"][first],
        "after": columns["after"][first],
        "count": counts,
    }


def _path(path: Sequence[Segment], things: _Things) -> dict[str, list[int]]:
    known = {(item["kind"], item["name"]): number for number, item in enumerate(things.listed)}

    def thing(segment: Segment) -> int:
        # Templates of one name are one here: the path says what, not which shape.
        result = known.get((segment.kind, segment.name))
        return things.of_host(segment.kind, segment.name) if result is None else result

    return {
        "rank": [segment.rank for segment in path],
        "start": [segment.start_ps for segment in path],
        "duration": [segment.duration_ps for segment in path],
        "thing": [thing(segment) for segment in path],
        "launch": [segment.launch for segment in path],
    }


def _engine_slices(things: _Things) -> dict[str, Any]:
    """Return when each kernel keeps each kind of engine busy, relative to its start."""
    reader = RowReader()
    kernels = [
        (number, template)
        for number, template in enumerate(things.templates)
        if template is not None and template.kind == "kernel"
    ]
    most = MOST_ENGINE_SLICES // max(len(kernels) * len(PE_ENGINES), 1)
    most = min(max(most, LEAST_OF_ENGINE), MOST_OF_ENGINE)
    columns: dict[str, list[int]] = {
        name: [] for name in ("thing", "engine", "start", "duration", "count", "bytes", "line")
    }
    for number, template in kernels:
        rows, texts = reader.read(template, 1), reader.vocabulary.texts
        for place, engine in enumerate(PE_ENGINES):
            codes = [code for code, text in enumerate(texts) if text == Engine(engine).value]
            mine = np.flatnonzero(np.isin(rows["engine"], codes))
            slices = merged_slices(rows["start_ps"][mine], rows["end_ps"][mine], most)
            first = mine[slices.first] if len(mine) else mine
            count = len(slices)
            columns["thing"] += [number] * count
            columns["engine"] += [place] * count
            columns["start"] += slices.start_ps.tolist()
            columns["duration"] += (slices.end_ps - slices.start_ps).tolist()
            columns["count"] += slices.sums(np.ones(len(mine), dtype=np.int64)).tolist()
            columns["bytes"] += slices.sums(rows["bytes"][mine]).tolist()
            columns["line"] += rows["line"][first].tolist()
    return {"names": [Engine(item).value for item in PE_ENGINES], "slices": packed(columns)}


def _links(log: OpLog, machine: Machine) -> dict[str, Any]:
    """Return the share of time in which each link that was used is busy, in equal parts."""
    from kernbench.report import Timeline

    timeline = Timeline(log, MOST_OF_LINK)
    edges = np.linspace(0, log.end_ps, LINK_BINS + 1)
    names, shares = [], []
    for key in timeline.links():
        slices = timeline.track(key).slices
        busy = np.cumsum(slices.end_ps - slices.start_ps)
        times = np.stack([slices.start_ps, slices.end_ps], axis=1).ravel()
        until = np.stack([busy - (slices.end_ps - slices.start_ps), busy], axis=1).ravel()
        share = np.diff(np.interp(edges, times, until)) / np.maximum(np.diff(edges), 1e-9)
        shares.append(np.rint(np.minimum(share, 1) * _FULL).astype(np.int64))
        names.append(machine.links[key.link].name)
    values = np.concatenate(shares) if shares else np.zeros(0, dtype=np.int64)
    return {"names": names, "bins": LINK_BINS, "full": _FULL, "busy": packed({"share": values})}
