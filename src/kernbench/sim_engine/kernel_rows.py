"""The op log's rows of one kernel: a row per command of the text and segment of programs."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import Atomic, DmaRead, DmaWrite, Gemm, Space, access_of
from kernbench.hardware import ceil_ps
from kernbench.sim_engine.kernel_plan import QUEUES, CommandSite
from kernbench.sim_engine.kernel_waves import Segment, Waves

Column = npt.NDArray[Any]


def build_rows(waves: Waves, front_end_ps: int, stretch: Fraction) -> dict[str, Column]:
    """Return the rows in order of start, as columns (see ``op_log.ROW_COLUMNS``).

    All times after the front end are ``stretch`` times longer than in ``waves``.

    PE ``p`` is in cube ``p % num_cubes``: programs that follow each other run in other cubes.
    Busy time is that of one program; bytes are those that cross the PEs' ports.
    """
    rows = [
        _row(site, segment, front_end_ps, stretch, waves.num_cubes)
        for group in waves.groups
        for segment in group.segments
        for site in group.plan.sites
        if segment.timed.pipeline.first_start_ps[site.index] >= 0
    ]
    rows.sort(key=lambda row: (row["start_ps"], row["program_first"], row["site"]))
    return {
        name: np.array([row[name] for row in rows], dtype=np.int64 if numeric else object)
        for name, numeric in _COLUMNS
    }


_COLUMNS = (
    ("engine", False),
    ("kind", False),
    ("cube", True),
    ("pe_first", True),
    ("pe_count", True),
    ("program_first", True),
    ("program_count", True),
    ("count", True),
    ("start_ps", True),
    ("end_ps", True),
    ("busy_ps", True),
    ("bytes", True),
    ("flops", True),
    ("src_space", False),
    ("dst_space", False),
    ("src_param", True),
    ("dst_param", True),
    ("file", False),
    ("line", True),
)


def _row(
    site: CommandSite, segment: Segment, front_end_ps: int, stretch: Fraction, num_cubes: int
) -> dict[str, Any]:
    timed, command = segment.timed, site.command
    pipeline = timed.pipeline
    moved = segment.traffic[site.index]
    # A program that a shared resource holds up is slowed down evenly.
    slow, plain = timed.duration_ps, max(pipeline.end_ps, 1)
    start = pipeline.first_start_ps[site.index] * slow // plain
    end = -(-pipeline.last_end_ps[site.index] * slow // plain)
    row: dict[str, Any] = {
        "site": site.index,
        "engine": str(QUEUES[site.queue]),
        "kind": site.kind,
        "cube": segment.first_pe % num_cubes if segment.count == 1 or num_cubes == 1 else -1,
        "pe_first": segment.first_pe,
        "pe_count": segment.count,
        "program_first": int(segment.program_ids[0]),
        "program_count": segment.count,
        "count": segment.count * site.count,
        "start_ps": front_end_ps + int((segment.first_start_ps + start) * stretch),
        "end_ps": front_end_ps + ceil_ps((segment.last_start_ps + end) * stretch),
        "busy_ps": timed.costs.busy_ps[site.index],
        "bytes": 0 if moved is None else moved.useful_bytes * segment.count,
        "flops": command.flops * site.count * segment.count if isinstance(command, Gemm) else 0,
        "src_space": str(Space.TCM),
        "dst_space": str(Space.TCM),
        "src_param": -1,
        "dst_param": -1,
        "file": command.line.file,
        "line": command.line.line,
    }
    if isinstance(command, DmaRead):
        row.update(src_space=str(command.space), src_param=access_of(command).param)
    elif isinstance(command, DmaWrite):
        row.update(dst_space=str(command.space), dst_param=access_of(command).param)
    elif isinstance(command, Atomic):
        row.update(src_space=str(command.space), dst_space=str(command.space))
        row.update(src_param=access_of(command).param, dst_param=access_of(command).param)
    return row
