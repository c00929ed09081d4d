"""The timeline of a run, as a file for ui.perfetto.dev and chrome://tracing."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np

from kernbench.commands import PE_ENGINES
from kernbench.hardware import Machine
from kernbench.memory import steps_in_use
from kernbench.op_log import (
    Column,
    HostRange,
    HostSpan,
    Instance,
    OpLog,
    Template,
    absolute_ps,
    power_over_time,
)
from kernbench.outputs import as_text, whole_file
from kernbench.report.formats.events import EventFile, Track
from kernbench.report.formats.nesting import nested_tracks
from kernbench.report.formats.track_events import TrackEventFile
from kernbench.report.slices import (
    MOST_COUNTER_POINTS,
    highest_steps,
    merged_slices,
    rate_steps,
    thinned_steps,
)
from kernbench.report.timeline import Timeline, TrackKey, TrackSlices

MOST_SLICES = 400_000
LEAST_PER_TRACK = 64
MOST_FLOWS = 20_000
MOST_ROWS_WITH_FLOWS = 50_000
_NATIVE = (".pftrace", ".perfetto-trace")


class PathSegment(Protocol):
    """A part of a critical path."""

    @property
    def rank(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def start_ps(self) -> int: ...
    @property
    def end_ps(self) -> int: ...
    @property
    def launch(self) -> int: ...


def write_trace(
    log: OpLog,
    machine: Machine,
    path: Path | str,
    *,
    most_slices: int = MOST_SLICES,
    critical_path: Sequence[PathSegment] = (),
) -> None:
    """Write the timeline of a run.

    A group of tracks per rank (what its host did, and the ranges that its program has named), per
    SIP (its streams, its engines; HBM bandwidth, power and memory in use as counters), and one of
    all links.
    Arrows lead from launches to kernels and from senders to receivers. Rows of an engine that
    overlap are drawn as one slice; a run with more than about ``most_slices`` slices is thinned by
    joining neighbours, and ``args.merged`` of a slice says of how many it is made. A
    ``critical_path`` gets a track above all others.

    The file is Perfetto's own protocol buffer if its name ends in ``.pftrace`` or
    ``.perfetto-trace``, else JSON that chrome://tracing reads, too; compressed if ``.gz`` follows.

    Raises:
        OutputError: The file cannot be written; then what was there is still there.
    """
    with whole_file(path) as out:
        dump_trace(
            log,
            machine,
            out,
            most_slices=most_slices,
            critical_path=critical_path,
            form=trace_form(path),
        )


class TraceForm(NamedTuple):
    """How a timeline is written."""

    is_native: bool = False
    """Whether it is Perfetto's own protocol buffer; else JSON."""
    is_compressed: bool = False


def trace_form(path: Path | str) -> TraceForm:
    """Return how a timeline is written that has this name."""
    name = str(path)
    return TraceForm(name.removesuffix(".gz").endswith(_NATIVE), name.endswith(".gz"))


def dump_trace(
    log: OpLog,
    machine: Machine,
    out: BinaryIO,
    *,
    most_slices: int = MOST_SLICES,
    critical_path: Sequence[PathSegment] = (),
    form: TraceForm = TraceForm(),  # noqa: B008
) -> None:
    """Write the timeline to an open file; see :func:`write_trace`."""
    writer = _TraceWriter(log, machine, most_slices)
    if not form.is_compressed:
        writer.write(out, critical_path, form)
        return
    # Without a name and a time, equal timelines are equal bytes.
    packed: Any = gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0)
    with packed:
        writer.write(packed, critical_path, form)


Events = EventFile | TrackEventFile


class _TraceWriter:
    def __init__(self, log: OpLog, machine: Machine, most_slices: int) -> None:
        self.log = log
        self.machine = machine
        # The k-th launch of a name by a rank is the k-th to complete: streams are in order.
        launches: Counter[tuple[int, str]] = Counter()
        host: dict[int, list[tuple[HostSpan, int]]] = {}
        for span in log.host_spans:
            names = log.graphs.get(span.label) or (span.label,)
            host.setdefault(span.rank, []).append((span, launches[span.rank, names[0]]))
            if span.kind == "launch":
                for launched in names:
                    launches[span.rank, launched] += 1
        ranges: dict[int, list[HostRange]] = {}
        for host_range in log.host_ranges:
            ranges.setdefault(host_range.rank, []).append(host_range)
        completions: Counter[tuple[int, str]] = Counter()
        streams: dict[tuple[int, str], list[tuple[int, int, int]]] = {}
        for index, instance in enumerate(log.instances):
            for position, sip in enumerate(instance.sips):
                name = (instance.ranks[position], instance.template.name)
                use = (index, position, completions[name])
                streams.setdefault((sip, instance.stream), []).append(use)
                completions[name] += 1
        self.host, self.ranges, self.streams = host, ranges, streams
        num_tracks = len(host) + len(streams) + len(streams) * len(PE_ENGINES) + len(machine.links)
        self.most = max(LEAST_PER_TRACK, most_slices // max(num_tracks, 1))
        self.timeline = Timeline(log, self.most)
        totals = [
            (template.hbm_bytes, template.hbm_bytes_by_rank)
            for template in self.timeline.spans.templates
        ]
        self.hbm_bytes = self.timeline.spans.shares(totals)
        self.power: list[tuple[Column, Column]] | None = None
        """The power of each rank, once it is asked for."""
        self.transfers_of: dict[Template, list[tuple[int, int, int, int]]] = {}
        # Where arrows may begin and end: launches by (rank, name, number); stream slices by
        # (instance, position).
        self.launched: dict[tuple[int, str, int], tuple[Track, int]] = {}
        self.placed: dict[tuple[int, int], Track] = {}

    def write(self, out: Any, critical_path: Sequence[PathSegment], form: TraceForm) -> None:
        about = {"machine": self.machine.name, "sips": self.machine.num_sips}
        if form.is_native:
            # What is compressed as a whole gets no smaller by parts.
            with TrackEventFile(out, about, packs=not form.is_compressed) as native:
                self._write_tracks(native, critical_path)
            return
        with as_text(out) as text, EventFile(text, about) as events:
            self._write_tracks(events, critical_path)

    def _write_tracks(self, events: Events, critical_path: Sequence[PathSegment]) -> None:
        ranks = sorted(self.host.keys() | self.ranges.keys())
        sips = sorted({sip for sip, _ in self.streams})
        if critical_path:
            self._write_path(events, critical_path)
        for rank in ranks:
            pid = events.process(f"rank {rank}", rank)
            self._write_ranges(events, pid, rank)
            self._write_host(events, pid, rank)
        first = max(ranks, default=-1) + 1
        for sip in sips:
            pid = events.process(f"SIP {sip}", first + sip)
            self._write_streams(events, pid, sip)
            for key in self.timeline.engines(sip):
                track = events.track(pid, PE_ENGINES[key.engine].value, 100 + key.engine)
                self._write_busy(events, track, key, self._engine_slice)
            self._write_hbm(events, pid, sip)
            self._write_power(events, pid, sip)
            self._write_memory(events, pid, sip)
        self._write_links(events, first + max(sips, default=-1) + 1)
        self._write_transfers(events)

    def _write_path(self, events: Events, path: Sequence[PathSegment]) -> None:
        track = events.track(events.process("critical path", -1), "critical path", 0)
        times = [(segment.start_ps, segment.end_ps) for segment in path]
        for start_ps, end_ps, first, merged in self._merged(times):
            segment = path[first]
            args: dict[str, Any] = {"rank": segment.rank, "duration_ps": end_ps - start_ps}
            name = f"{segment.name}, rank {segment.rank}"
            if merged > 1:
                name, args["merged"] = f"{name} + {merged - 1} more", merged
            elif segment.launch:
                args["launch"] = segment.launch
            events.slice(track, name, segment.kind, start_ps, end_ps, args)

    def _merged(self, times_ps: Sequence[tuple[int, int]]) -> Iterator[tuple[Any, ...]]:
        """Yield each slice of spans: its start, its end, its first span, and how many it is of."""
        spans = np.array(times_ps, dtype=np.int64).reshape(-1, 2)
        slices = merged_slices(spans[:, 0], spans[:, 1], self.most)
        sizes = np.diff(slices.heads, append=len(spans))
        return _columns(slices.start_ps, slices.end_ps, slices.first, sizes)

    def _write_ranges(self, events: Events, pid: int, rank: int) -> None:
        """Write the ranges that the program named; if there are very many, the longest."""
        kept = sorted(self.ranges.get(rank, ()), key=lambda it: it.start_ps - it.end_ps)[
            : self.most
        ]
        for number, ranges in enumerate(nested_tracks(kept)):
            track = events.track(pid, f"ranges {number}" if number else "ranges", number)
            for it in ranges:
                args = {"duration_ps": it.end_ps - it.start_ps}
                events.slice(track, it.name, "range", it.start_ps, it.end_ps, args)

    def _write_host(self, events: Events, pid: int, rank: int) -> None:
        track = events.track(pid, "host", 100)
        spans = self.host.get(rank, [])
        times = [(span.start_ps, span.end_ps) for span, _ in spans]
        for start_ps, end_ps, first, merged in self._merged(times):
            span, number = spans[first]
            args: dict[str, Any] = {"duration_ps": end_ps - start_ps}
            name = f"{span.kind} {span.label}" if span.label else span.kind
            if merged > 1:
                name, args["merged"] = f"{name} + {merged - 1} more", merged
            elif span.kind == "launch":
                # The first, of those that a graph launches at once.
                first = (self.log.graphs.get(span.label) or (span.label,))[0]
                self.launched[rank, first, number] = (track, start_ps)
            events.slice(track, name, span.kind, start_ps, end_ps, args)

    def _write_streams(self, events: Events, pid: int, sip: int) -> None:
        names = sorted(stream for number, stream in self.streams if number == sip)
        for order, stream in enumerate(names):
            track = events.track(pid, f"stream {stream}", order)
            uses = self.streams[sip, stream]
            log = self.log.instances
            times = [(log[i].starts_ps[at], log[i].ends_ps[at]) for i, at, _ in uses]
            for start_ps, end_ps, first, merged in self._merged(times):
                index, position, number = uses[first]
                instance = log[index]
                args = _instance_args(instance, position, end_ps - start_ps)
                name = instance.template.name
                if merged > 1:
                    name, args = f"{name} + {merged - 1} more", {"merged": merged}
                events.slice(track, name, instance.template.kind, start_ps, end_ps, args)
                if merged == 1:
                    self.placed[index, position] = track
                    source = self.launched.get((instance.ranks[position], name, number))
                    if source is not None and source[1] <= start_ps:
                        events.flow("launch", source, (track, start_ps))

    def _write_links(self, events: Events, sort_index: int) -> None:
        keys = self.timeline.links()
        if not keys:
            return
        pid = events.process("links", sort_index)
        for key in keys:
            track = events.track(pid, f"link {self.machine.links[key.link].name}", key.link)
            slices = self._write_busy(events, track, key, self._link_slice)
            name = f"{self.machine.links[key.link].name} bandwidth"
            for time_ps, rate in _columns(
                *rate_steps(slices.slices.start_ps, slices.slices.end_ps, slices.size_bytes)
            ):
                events.counter(pid, name, "GB/s", time_ps, rate)

    def _write_busy(
        self,
        events: Events,
        track: Track,
        key: TrackKey,
        describe: Callable[[Instance, int, int], tuple[str, dict[str, Any]]],
    ) -> TrackSlices:
        track_slices = self.timeline.track(key)
        for start_ps, end_ps, index, row, merged, size in _columns(
            track_slices.slices.start_ps,
            track_slices.slices.end_ps,
            track_slices.instance,
            track_slices.row,
            track_slices.merged,
            track_slices.size_bytes,
        ):
            instance = self.log.instances[index]
            name, args = describe(instance, row, merged)
            args |= {"launch": instance.launch_id, "bytes": size, "duration_ps": end_ps - start_ps}
            if merged > 1:
                args["merged"] = merged
            events.slice(track, name, instance.template.kind, start_ps, end_ps, args)
        return track_slices

    def _engine_slice(
        self, instance: Instance, row: int, merged: int
    ) -> tuple[str, dict[str, Any]]:
        rows = self.timeline.rows(instance.template)
        text = self.timeline.reader.vocabulary.texts
        args: dict[str, Any] = {"kind": text[rows["kind"][row]]}
        if rows["line"][row]:
            args["source"] = f"{text[rows['file'][row]]}:{rows['line'][row]}"
        return instance.template.name, args

    def _link_slice(self, instance: Instance, row: int, merged: int) -> tuple[str, dict[str, Any]]:
        name = instance.template.name
        if merged > 1:
            return f"{name}, {merged} transfers", {}
        rows = self.timeline.rows(instance.template)
        step, chunk = int(rows["step"][row]), int(rows["chunk"][row])
        peer = int(rows["peer"][row])
        if instance.template.kind == "kernel":
            kind = self.timeline.reader.vocabulary.texts[rows["kind"][row]]
            ends = (peer, instance.ranks[0])
            from_rank, to_rank = ends if kind.startswith("dma_read") else ends[::-1]
            return f"{name} {kind}", {"from_rank": from_rank, "to_rank": to_rank}
        args = {
            "step": step,
            "chunk": chunk,
            "from_rank": instance.ranks[max(rows["rank"][row], 0)],
            "to_rank": instance.ranks[peer] if peer >= 0 else -1,
        }
        return f"{name} step {step} chunk {chunk}", args

    def _write_hbm(self, events: Events, pid: int, sip: int) -> None:
        spans = self.timeline.spans
        here = np.flatnonzero((spans.sip == sip) & (spans.end_ps > spans.start_ps))
        sizes = self.hbm_bytes[here]
        times, rates = rate_steps(spans.start_ps[here], spans.end_ps[here], sizes)
        for time_ps, rate in _columns(times, rates):
            events.counter(pid, "HBM bandwidth", "GB/s", time_ps, rate)

    def _write_power(self, events: Events, pid: int, sip: int) -> None:
        spans = self.timeline.spans
        if self.power is None:
            num_ranks = int(spans.rank.max(initial=-1)) + 1
            self.power = power_over_time(self.log, self.machine, num_ranks)
        ranks = np.unique(spans.rank[spans.sip == sip]).tolist()
        for times, watts in (self.power[rank] for rank in ranks[:1]):
            for time_ps, value in _columns(*thinned_steps(times, watts, MOST_COUNTER_POINTS)):
                events.counter(pid, "power", "W", time_ps, round(value, 1))

    def _write_memory(self, events: Events, pid: int, sip: int) -> None:
        allocations = self.log.allocations
        here = [] if allocations is None else allocations.on(sip)
        if here:
            _, times_ps, in_use = steps_in_use(here)
            points = highest_steps(times_ps, in_use, MOST_COUNTER_POINTS)
            for time_ps, size_bytes in _columns(*points):
                events.counter(pid, "memory", "MiB", time_ps, round(size_bytes / (1 << 20), 3))

    def _write_transfers(self, events: Events) -> None:
        """Write an arrow per transfer from the sender's slice to the receiver's."""
        left = MOST_FLOWS
        for index, instance in enumerate(self.log.instances):
            if instance.template.kind != "collective":
                continue
            transfers = self._transfers(instance)
            if len(transfers) > left:
                continue
            left -= len(transfers)
            moments = np.array([transfer[2:] for transfer in transfers], dtype=np.int64).reshape(-1)
            placed = absolute_ps([instance], moments).reshape(-1, 2).tolist()
            for (src, dst, *_), (sent_ps, received_ps) in zip(transfers, placed, strict=True):
                sender, receiver = self.placed.get((index, src)), self.placed.get((index, dst))
                if sender is None or receiver is None:
                    continue
                start_ps = max(sent_ps, instance.starts_ps[src])
                # One nanosecond early: a slice does not contain its own end.
                end_ps = min(received_ps, instance.ends_ps[dst]) - 1000
                if instance.starts_ps[dst] <= max(end_ps, start_ps) <= instance.ends_ps[dst]:
                    events.flow("transfer", (sender, start_ps), (receiver, max(end_ps, start_ps)))

    def _transfers(self, instance: Instance) -> list[tuple[int, int, int, int]]:
        """Return (source, destination, start, end) of each transfer; its hops are merged.

        Of a collective with very many, none: so many arrows show nothing.
        """
        template = instance.template
        transfers = self.transfers_of.get(template)
        if transfers is None:
            rows = self.timeline.rows(template)
            sent = np.flatnonzero((rows["link"] >= 0) & (rows["peer"] >= 0))
            if len(sent) > MOST_ROWS_WITH_FLOWS:
                sent = sent[:0]
            names = np.stack([rows[name][sent] for name in ("step", "rank", "peer", "chunk")])
            _, which = np.unique(names, axis=1, return_inverse=True)
            num = int(which.max(initial=-1)) + 1
            start_ps = np.full(num, np.iinfo(np.int64).max)
            end_ps = np.zeros(num, dtype=np.int64)
            np.minimum.at(start_ps, which, rows["start_ps"][sent])
            np.maximum.at(end_ps, which, rows["end_ps"][sent])
            first = np.zeros(num, dtype=np.int64)
            first[which[::-1]] = sent[::-1]
            ends = (rows["rank"][first], rows["peer"][first], start_ps, end_ps)
            transfers = self.transfers_of[template] = list(_columns(*ends))
        return transfers


def _columns(*columns: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the lines of parallel columns as plain Python numbers."""
    lists = [column if isinstance(column, list) else column.tolist() for column in columns]
    return zip(*lists, strict=True)


def _instance_args(instance: Instance, position: int, duration_ps: int) -> dict[str, Any]:
    template = instance.template
    args: dict[str, Any] = {
        "rank": instance.ranks[position],
        "launch": instance.launch_id,
        "duration_ps": duration_ps,
        "flops": template.flops,
        "hbm_bytes": template.hbm_bytes,
    }
    if template.kind == "collective":
        args |= {"algorithm": template.algorithm, "message_bytes": template.message_bytes}
    return {**args, **template.launched_with}
