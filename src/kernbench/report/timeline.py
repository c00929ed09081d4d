"""The slices of each engine and each link of a run, from its op log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kernbench.commands import PE_ENGINES, Engine
from kernbench.op_log import (
    Column,
    OpLog,
    RowReader,
    Rows,
    Spans,
    Template,
    absolute_ps,
    build_spans,
)
from kernbench.report.slices import Slices, merged_slices


@dataclass(frozen=True, slots=True)
class TrackKey:
    """An engine of a SIP, or a link (``sip`` and ``engine`` are -1 then)."""

    sip: int
    engine: int
    link: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class Busy:
    """When a template keeps one engine or link busy, in relative time; columns of equal length."""

    template: Template
    start_ps: Column
    end_ps: Column
    row: Column
    """The template's row that the slice begins with."""
    merged: Column
    """How many rows the slice stands for."""
    size_bytes: Column


@dataclass(frozen=True, slots=True, eq=False)
class TrackSlices:
    """The slices of one engine or link in absolute time, each with its first row."""

    slices: Slices
    instance: Column
    row: Column
    merged: Column
    size_bytes: Column


class Timeline:
    """The busy times of all engines and links of a run.

    ``most`` is how many slices a track may have; a template's own slices are held to it too, so
    memory stays bounded for logs of any size.
    """

    def __init__(self, log: OpLog, most: int) -> None:
        self.log = log
        self.spans: Spans = build_spans(log)
        self.reader = RowReader()
        self._most = most
        self._uses: dict[TrackKey, list[tuple[Busy, Column]]] = {}
        self._find_uses()

    def engines(self, sip: int) -> list[TrackKey]:
        """Return the engines of a SIP that were ever busy, in the order of display."""
        keys = (TrackKey(sip, engine) for engine in range(len(PE_ENGINES)))
        return [key for key in keys if key in self._uses]

    def links(self) -> list[TrackKey]:
        """Return the links that were ever busy."""
        return sorted((key for key in self._uses if key.link >= 0), key=lambda key: key.link)

    def rows(self, template: Template) -> Rows:
        """Return the rows of a template that the log holds."""
        return self.reader.read(template, self._num_ranks[template])

    def track(self, key: TrackKey) -> TrackSlices:
        """Return the slices of one engine or link."""
        parts = []
        for busy, instances in self._uses[key]:
            placed = [self.log.instances[index] for index in instances.tolist()]
            num = len(instances)
            parts.append(
                (
                    absolute_ps(placed, busy.start_ps).ravel(),
                    absolute_ps(placed, busy.end_ps).ravel(),
                    np.repeat(instances, len(busy.row)),
                    np.tile(busy.row, num),
                    np.tile(busy.merged, num),
                    np.tile(busy.size_bytes, num),
                )
            )
        start_ps, end_ps, instance, row, merged, size = map(
            np.concatenate, zip(*parts, strict=True)
        )
        slices = merged_slices(start_ps, end_ps, self._most)
        first = slices.first
        return TrackSlices(
            slices, instance[first], row[first], slices.sums(merged), slices.sums(size)
        )

    def _find_uses(self) -> None:
        spans = self.spans
        self._num_ranks = {item.template: len(item.ranks) for item in self.log.instances}
        order = np.lexsort((spans.instance, spans.position, spans.template))
        bounds = np.searchsorted(spans.template[order], np.arange(len(spans.templates) + 1))
        for index, template in enumerate(spans.templates):
            mine = order[bounds[index] : bounds[index + 1]]
            by_position = np.split(mine, np.flatnonzero(np.diff(spans.position[mine])) + 1)
            for key, busy in self._busy_of(template):
                if key.link >= 0:
                    self._use(key, busy, spans.instance[by_position[0]])
                    continue
                # TrackKey.sip holds the rank's position until the instance says which SIP it is.
                entries = by_position[key.sip]
                for sip in np.unique(spans.sip[entries]).tolist():
                    where = entries[spans.sip[entries] == sip]
                    self._use(TrackKey(sip, key.engine), busy, spans.instance[where])

    def _use(self, key: TrackKey, busy: Busy, instances: Column) -> None:
        self._uses.setdefault(key, []).append((busy, instances))

    def _busy_of(self, template: Template) -> Iterator[tuple[TrackKey, Busy]]:
        rows = self.rows(template)
        texts = self.reader.vocabulary.texts
        engine_of = np.array(
            [PE_ENGINES.index(Engine(text)) if text in PE_ENGINES else -1 for text in texts]
        )
        engine, link = engine_of[rows["engine"]], rows["link"]
        position = np.maximum(rows["rank"], 0)
        shown = np.flatnonzero((link >= 0) | (engine >= 0))
        # One number per track: links first, then engines by position.
        num_links = int(link.max(initial=-1)) + 1
        number = np.where(link >= 0, link, num_links + position * len(PE_ENGINES) + engine)[shown]
        order = np.argsort(number, kind="stable")
        heads = np.flatnonzero(np.diff(number[order], prepend=-1))
        for where in np.split(shown[order], heads[1:]) if len(shown) else []:
            first = where[0]
            if link[first] >= 0:
                key = TrackKey(-1, -1, int(link[first]))
                # A link is busy while bytes go in; the rest of the row is their flight.
                sent_ps = rows["start_ps"][where] + rows["busy_ps"][where]
                end_ps = np.minimum(rows["end_ps"][where], sent_ps)
            else:
                key = TrackKey(int(position[first]), int(engine[first]))
                end_ps = rows["end_ps"][where]
            slices = merged_slices(rows["start_ps"][where], end_ps, self._most)
            yield (
                key,
                Busy(
                    template,
                    slices.start_ps,
                    slices.end_ps,
                    where[slices.first],
                    slices.sums(np.ones(len(where), dtype=np.int64)),
                    slices.sums(rows["bytes"][where]),
                ),
            )
