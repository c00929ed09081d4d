"""The commands and the host time of a log as columns.

A log keeps plain values until somebody asks for objects; reports and files of runs need none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from kernbench.op_log.log import HOST_WIDTH, WIDTH, Column, OpLog, Template, values_in_a_row
from kernbench.op_log.rows import rank_shares

_FIELDS = (
    *("launch_id", "template", "ranks", "sips", "starts_ps", "ends_ps"),
    *("stream", "after", "addresses"),
)
"""The fields of an instance, in the order of a log's plain values."""
_HOST_FIELDS = ("rank", "kind", "label", "start_ps", "end_ps")


@dataclass(frozen=True, slots=True, eq=False)
class CommandColumns:
    """A log's commands in order, with one entry each."""

    numbers: Sequence[int]
    """Their launch ids."""
    templates: Sequence[Template]
    streams: Sequence[str]
    addresses: Sequence[tuple[int, ...]]
    num_ranks: Column
    """How many entries a command has in the following columns, which have one by rank."""
    ranks: Column
    sips: Column
    starts_ps: Column
    ends_ps: Column
    after: Column
    """For :meth:`OpLog.number_of`."""


def command_columns(log: OpLog) -> CommandColumns:
    """Return the commands of a log as columns."""
    fields = _plain_fields(log) if log.is_plain else _fields_of_objects(log)
    numbers, templates, ranks, sips, starts_ps, ends_ps, streams, after, addresses = fields
    return CommandColumns(
        numbers,
        templates,
        streams,
        addresses,
        np.array([len(rank) if type(rank) is tuple else 1 for rank in ranks], np.int64),
        *map(_flat, (ranks, sips, starts_ps, ends_ps, after)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class HostColumns:
    """A log's host spans in order, with one entry each."""

    ranks: Column
    kinds: Sequence[str]
    labels: Sequence[str]
    starts_ps: Column
    ends_ps: Column


def host_columns(log: OpLog) -> HostColumns:
    """Return the host spans of a log as columns."""
    if log.has_plain_spans:
        fields = [log.plain_spans[place::HOST_WIDTH] for place in range(HOST_WIDTH)]
    else:
        fields = [list(map(attrgetter(name), log.host_spans)) for name in _HOST_FIELDS]
    ranks, kinds, labels, starts_ps, ends_ps = fields
    times_ps = (np.array(item, np.int64) for item in (starts_ps, ends_ps))
    return HostColumns(np.array(ranks, np.int64), kinds, labels, *times_ps)


def _plain_fields(log: OpLog) -> list[list[Any]]:
    fields = [log.plain_commands[place::WIDTH] for place in range(WIDTH)]
    if log.plain_instances:
        launched = zip(*[iter(log.plain_instances)] * WIDTH, strict=True)
        rows = chain.from_iterable(values_in_a_row(*item) for item in launched)
        fields = [old + list(new) for old, new in zip(fields, zip(*rows, strict=True), strict=True)]
        numbers = fields[0]
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        fields = [[field[place] for place in order] for field in fields]
    return fields


def _fields_of_objects(log: OpLog) -> list[list[Any]]:
    fields = [list(map(attrgetter(name), log.instances)) for name in _FIELDS]
    ranks, after = fields[_FIELDS.index("ranks")], fields[_FIELDS.index("after")]
    after[:] = [item or (0,) * len(of) for item, of in zip(after, ranks, strict=True)]
    return fields


def _flat(values: Sequence[int | tuple[int, ...]]) -> Column:
    # Of all commands few have several ranks: what lies between them is taken as it is.
    flat: list[int] = []
    first = 0
    for place in [place for place, number in enumerate(values) if type(number) is tuple]:
        flat += values[first:place]  # type: ignore[arg-type]
        flat += values[place]  # type: ignore[arg-type]
        first = place + 1
    flat += values[first:]  # type: ignore[arg-type]
    return np.array(flat, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """One entry per instance and rank of it, in log order; all columns of one length."""

    templates: tuple[Template, ...]
    """Each template once, in the order of first use."""
    template: Column
    """Index into ``templates``."""
    instance: Column
    """Index into the log's instances."""
    position: Column
    """Position of the rank in its instance (0 for kernels)."""
    rank: Column
    sip: Column
    start_ps: Column
    end_ps: Column

    def __len__(self) -> int:
        return len(self.rank)

    def shares(self, totals: Iterable[tuple[int, tuple[int, ...]]]) -> Column:
        """Return each entry's share of its template's total.

        ``totals`` has, for every template, the total and its parts by position; without parts, a
        total is split evenly.
        """
        widths = np.zeros(len(self.templates), dtype=np.int64)
        np.maximum.at(widths, self.template, self.position + 1)
        parts = [
            rank_shares(total, by_rank, int(width))
            for (total, by_rank), width in zip(totals, widths, strict=True)
        ]
        if not parts:
            return np.zeros(0, dtype=np.int64)
        first = np.cumsum(widths) - widths
        shares: Column = np.concatenate(parts)[first[self.template] + self.position]
        return shares


def build_spans(log: OpLog) -> Spans:
    """Return the log's instances as columns."""
    commands = command_columns(log)
    numbers: dict[Template, int] = {}
    template_of = [numbers.setdefault(template, len(numbers)) for template in commands.templates]
    sizes = commands.num_ranks
    instance = np.repeat(np.arange(len(sizes)), sizes)
    return Spans(
        templates=tuple(numbers),
        template=np.array(template_of, dtype=np.int64)[instance],
        instance=instance,
        position=np.arange(len(instance)) - np.repeat(np.cumsum(sizes) - sizes, sizes),
        rank=commands.ranks,
        sip=commands.sips,
        start_ps=commands.starts_ps,
        end_ps=commands.ends_ps,
    )


def covered_ps(starts: Column, ends: Column) -> int:
    """Return how much time lies in at least one of the intervals ``[start, end)``.

    >>> covered_ps(np.array([5, 0, 2]), np.array([7, 3, 4]))
    6
    """
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    begin = starts[order]
    reach = np.maximum.accumulate(ends[order])
    gaps = np.maximum(begin[1:] - reach[:-1], 0)
    return int(reach[-1] - begin[0] - gaps.sum())


def exposed_ps(starts: Column, ends: Column, cover_starts: Column, cover_ends: Column) -> int:
    """Return how much time lies in an interval but in no covering one."""
    both = covered_ps(np.concatenate([starts, cover_starts]), np.concatenate([ends, cover_ends]))
    return both - covered_ps(cover_starts, cover_ends)
