"""The op log's rows of one kernel: a row per command of the text and segment of programs."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from kernbench.commands import Atomic, DmaRead, DmaWrite, Gemm, Space, access_of
from kernbench.kernel_time.launch.waves import GroupWaves, Waves
from kernbench.kernel_time.program.timed_plan import CommandSite
from kernbench.op_log import Column


def build_rows(waves: Waves, front_end_ps: int, stretch: Fraction) -> dict[str, Column]:
    """Return the rows in order of start, as columns (see ``op_log.ROW_COLUMNS``).

    All times after the front end are ``stretch`` times longer than in ``waves``.

    PE ``p`` is in cube ``p % num_cubes``: programs that follow each other run in other cubes.
    Busy time is that of one program; bytes are those that cross the PEs' ports.
    """
    # Programs that do nothing have no rows.
    parts = [_rows_of(group, waves.num_cubes) for group in waves.groups if group.plan.sites]
    if not parts:
        return dict.fromkeys(("start_ps", "end_ps"), np.zeros(0, dtype=np.int64))
    names = list(parts[0])
    # Column after column: all rows of a long context twice are too much.
    rows = {name: np.concatenate([part.pop(name) for part in parts]) for name in names}
    rows["start_ps"] = front_end_ps + _scaled(rows["start_ps"], stretch, math.floor)
    rows["end_ps"] = front_end_ps + _scaled(rows["end_ps"], stretch, math.ceil)
    order = np.lexsort((rows["site"], rows["program_first"], rows["start_ps"]))
    del rows["site"]
    for name in rows:
        rows[name] = rows[name][order]
    return rows


def _scaled(times: Column, stretch: Fraction, rounded: Callable[[Fraction], int]) -> Column:
    if stretch == 1:
        return times
    # A product with the fraction's numerator does not fit into 64 bits.
    values, which = np.unique(times, return_inverse=True)
    scaled = np.array([rounded(value * stretch) for value in values.tolist()], dtype=np.int64)
    return scaled[which.reshape(-1)]


def _rows_of(group: GroupWaves, num_cubes: int) -> dict[str, Column]:
    """Return a group's rows, times from the first program's start on, and the site of each."""
    sites, segments = group.plan.sites, group.segments
    by_kind = _by_kind_and_site(group)
    # A row for each segment and each site that its programs run.
    segment, site = np.nonzero(by_kind["first_ps"][segments.kind] >= 0)
    kind = segments.kind[segment]
    count, first_pe = segments.count[segment], segments.first_pe[segment]
    is_in_one = (count == 1) | (num_cubes == 1)
    rows: dict[str, Column] = {
        "site": site,
        "cube": np.where(is_in_one, first_pe % num_cubes, -1).astype(np.int32),
        "pe_first": first_pe.astype(np.int32),
        "pe_count": count.astype(np.int32),
        "program_first": segments.first_program[segment],
        "program_count": count,
        "count": count * by_kind["runs"][kind, site],
        "start_ps": segments.first_start_ps[segment] + by_kind["first_ps"][kind, site],
        "end_ps": segments.last_start_ps[segment] + by_kind["last_ps"][kind, site],
        "busy_ps": by_kind["busy_ps"][kind, site],
        "bytes": by_kind["bytes"][kind, site] * count,
        "flops": by_kind["flops"][kind, site] * count,
    }
    of_text = [_of_text(site) for site in sites]
    for name in of_text[0] if of_text else ():
        values = [values[name] for values in of_text]
        dtype = object if isinstance(values[0], str) else np.int32
        rows[name] = np.array(values, dtype=dtype)[site]
    return rows


def _by_kind_and_site(group: GroupWaves) -> dict[str, Column]:
    """Return what a program of each kind does at each site; -1 ps where it never runs."""
    numbers: dict[str, list[list[int]]] = {}
    for kind, timed in zip(group.kinds, group.timed, strict=True):
        pipeline, counts = timed.pipeline, kind.program_class.counts
        # A program that a shared resource holds up is slowed down evenly.
        slow, plain = timed.duration_ps, max(pipeline.end_ps, 1)
        sites = [
            {
                "first_ps": -1 if first < 0 else first * slow // plain,
                "last_ps": -(-last * slow // plain),
                "runs": runs,
                "busy_ps": busy,
                "bytes": 0 if moved is None else moved.useful_bytes,
                "flops": site.command.flops * runs if isinstance(site.command, Gemm) else 0,
            }
            for site, first, last, runs, busy, moved in zip(
                group.plan.sites,
                pipeline.first_start_ps,
                pipeline.last_end_ps,
                counts,
                timed.costs.busy_ps,
                kind.program_class.traffic,
                strict=True,
            )
        ]
        for name in _BY_KIND:
            numbers.setdefault(name, []).append([site[name] for site in sites])
    return {name: np.array(table, dtype=np.int64) for name, table in numbers.items()}


_BY_KIND = ("first_ps", "last_ps", "runs", "busy_ps", "bytes", "flops")


def _of_text(site: CommandSite) -> dict[str, Any]:
    """Return what is the same for all programs that run a site."""
    command = site.command
    text: dict[str, Any] = {
        "engine": str(site.queue.engine),
        "kind": site.kind,
        "src_space": str(Space.TCM),
        "dst_space": str(Space.TCM),
        "src_param": -1,
        "dst_param": -1,
        "file": command.line.file,
        "line": command.line.line,
    }
    if isinstance(command, DmaRead):
        text.update(src_space=str(command.space), src_param=access_of(command).param)
    elif isinstance(command, DmaWrite):
        text.update(dst_space=str(command.space), dst_param=access_of(command).param)
    elif isinstance(command, Atomic):
        text.update(src_space=str(command.space), dst_space=str(command.space))
        text.update(src_param=access_of(command).param, dst_param=access_of(command).param)
    return text
