"""When each rank was busy with what, as columns, and how much time such spans cover."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kernbench.op_log.columns import command_columns
from kernbench.op_log.log import Column, OpLog, Template
from kernbench.op_log.rows import rank_shares


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
