"""The rows and the template of a launch whose end was unknown when it began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from kernbench.commands import Atomic, DmaRead, DmaWrite, Engine, Gemm, SourceLine, Space, access_of
from kernbench.hardware import PS_PER_NS, SipSpec, ceil_ps
from kernbench.kernel_time.costs.command_costs import gemm_flops_per_clock
from kernbench.kernel_time.launch.work import site_operations
from kernbench.kernel_time.program.queues import Queue
from kernbench.kernel_time.program.timed_plan import CommandSite
from kernbench.links import Passage
from kernbench.op_log import Column, Template, WorkCounts, exposed_ps, pace_of, uncapped

_MOST_HOPS = 20_000
"""Transfers on links that have a row each; later ones join the newest row like them."""


@dataclass(frozen=True, slots=True)
class ProgramRange:
    """The programs that a row is about, and the first one's PE."""

    first: int
    count: int
    pe: int


@dataclass(frozen=True, slots=True)
class _What:
    """What all rows of one command or transfer have in common."""

    engine: Engine
    kind: str
    line: SourceLine
    programs: ProgramRange
    peer: int = -1
    link: int = -1
    src_space: Space = Space.NONE
    dst_space: Space = Space.NONE
    src_param: int = -1
    dst_param: int = -1


@dataclass(slots=True)
class _Row:
    start_ps: int
    end_ps: int
    busy_ps: int
    count: int
    size_bytes: int
    flops: int = 0

    def join(self, other: _Row) -> None:
        self.start_ps = min(self.start_ps, other.start_ps)
        self.end_ps = max(self.end_ps, other.end_ps)
        self.busy_ps += other.busy_ps
        self.count += other.count
        self.size_bytes += other.size_bytes
        self.flops += other.flops


@dataclass(slots=True)
class StrandLog:
    """Collects what happens on a SIP during a launch, in absolute time."""

    sip: SipSpec
    start_ps: int
    hbm_bytes: Fraction = Fraction(0)
    _flops: int = 0
    _gemm_clocks: Fraction = Fraction(0)
    _operations: dict[bool, Counter[str]] = field(
        default_factory=lambda: {True: Counter(), False: Counter()}
    )
    """Flops by rate (True), and elements by class of operation."""
    _port_bytes: int = 0
    _link_bytes: int = 0
    _busy_ps: list[int] = field(default_factory=lambda: [0] * len(Queue))
    """The busy time of each sort of engine, over all PEs."""
    _rows: dict[_What, _Row] = field(default_factory=dict)
    _hops: list[tuple[_What, _Row]] = field(default_factory=list)
    _newest: dict[_What, _Row] = field(default_factory=dict)
    _work: list[tuple[int, int]] = field(default_factory=list)
    """When something ran on the SIP itself."""
    _communication: list[tuple[int, int]] = field(default_factory=list)
    """When something went to another SIP, or a signal was waited for."""

    def ran(
        self,
        site: CommandSite,
        programs: ProgramRange,
        start_ps: int,
        end_ps: int,
        busy_ps: int,
        size_bytes: int,
        peer: int = -1,
    ) -> None:
        """Record all runs of a command: from the first one's start to the last one's end.

        ``busy_ps`` is one program's, ``size_bytes`` are all programs'. ``peer`` is the rank whose
        memory it goes to, -1 for the own one.
        """
        row = _Row(start_ps, end_ps, busy_ps, site.count * programs.count, size_bytes)
        if isinstance(site.command, Gemm):
            row.flops = site.command.flops * site.count * programs.count
            self._flops += row.flops
            self._gemm_clocks += row.flops / gemm_flops_per_clock(site.command, self.sip)
        operations = self._operations[isinstance(site.command, Gemm)]
        for name, count in site_operations(site, self.sip).items():
            operations[name] += count * site.count * programs.count
        self._port_bytes += size_bytes
        self._busy_ps[site.queue] += busy_ps * programs.count
        self._join(_what(site, programs, peer), row)
        (self._work if peer < 0 else self._communication).append((start_ps, end_ps))

    def passed(
        self,
        site: CommandSite,
        programs: ProgramRange,
        passage: Passage,
        size_bytes: int,
        peer: int,
    ) -> None:
        """Record a transfer on every link that it took."""
        kind = f"{site.kind}_transfer"
        self._link_bytes += size_bytes * len(passage.hops)
        for hop in passage.hops:
            what = _What(Engine.LINK, kind, site.command.line, programs, peer, hop.link)
            row = _Row(hop.start_ps, hop.end_ps, hop.busy_ps, 1, size_bytes)
            before = self._newest.get(what)
            follows = before is not None and before.start_ps <= hop.start_ps <= before.end_ps
            if before is not None and (follows or len(self._hops) >= _MOST_HOPS):
                before.join(row)
                continue
            self._newest[what] = row
            self._hops.append((what, row))

    def waited(self, line: SourceLine, programs: ProgramRange, start_ps: int, end_ps: int) -> None:
        """Record that programs waited for memory to change."""
        row = _Row(start_ps, end_ps, end_ps - start_ps, 1, 0)
        self._join(_What(Engine.LINK, "wait", line, programs), row)
        self._communication.append((start_ps, end_ps))

    def _join(self, what: _What, row: _Row) -> None:
        before = self._rows.setdefault(what, row)
        if before is not row:
            before.join(row)

    def template(self, name: str, end_ps: int, value: Mapping[str, Any]) -> Template:
        """Return what the launch did, ended at ``end_ps``; ``given`` is what it was given."""
        sip = self.sip
        hbm_bytes = ceil_ps(self.hbm_bytes)
        work = WorkCounts(
            flops=self._operations[True],
            elements=self._operations[False],
            port_bytes=self._port_bytes,
            hbm_bytes=hbm_bytes,
            link_bytes=self._link_bytes,
        )
        taken_ps = end_ps - self.start_ps
        gemm_ps = ceil_ps(self._gemm_clocks * PS_PER_NS / sip.clock_ghz / sip.num_pes)
        return Template(
            name=name,
            kind="kernel",
            algorithm="",
            duration_ps=taken_ps,
            flops=self._flops,
            family="gemm" if self._flops else "membound",
            hbm_bytes=hbm_bytes,
            engine_busy_ps={queue.engine: self._busy_ps[queue] // sip.num_pes for queue in Queue},
            message_bytes=0,
            make_rows=self._columns,
            launched_with=value,
            bound_ps=max(gemm_ps, sip.hbm_stream_ps(hbm_bytes)),
            comm_ps=exposed_ps(*_bounds(self._communication), *_bounds(self._work)),
            # How long it takes depends on others: a cap does not slow it down.
            energy_pj=pace_of(uncapped(sip.power), work, taken_ps, 0).energy_pj,
        )

    def _columns(self) -> dict[str, Column]:
        rows = [*self._rows.items(), *self._hops]
        # Links last among what starts together; the rest is in the order of the first run.
        rows.sort(key=lambda pair: (pair[1].start_ps, pair[0].link))
        columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        for what, row in rows:
            values = (
                str(what.engine), what.kind, what.programs.pe, what.programs.count,
                what.programs.first, what.programs.count, row.count,
                row.start_ps - self.start_ps, row.end_ps - self.start_ps, row.busy_ps,
                row.size_bytes, row.flops, str(what.src_space), str(what.dst_space),
                what.src_param, what.dst_param, what.peer, what.link,
                what.line.file, what.line.line,
            )  # fmt: skip
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
        return {
            name: np.array(column, dtype=object if name in _TEXTS else np.int64)
            for name, column in columns.items()
        }


_COLUMNS = (
    "engine", "kind", "pe_first", "pe_count", "program_first", "program_count", "count",
    "start_ps", "end_ps", "busy_ps", "bytes", "flops", "src_space", "dst_space",
    "src_param", "dst_param", "peer", "link", "file", "line",
)  # fmt: skip
_TEXTS = frozenset({"engine", "kind", "src_space", "dst_space", "file"})


def _what(site: CommandSite, programs: ProgramRange, peer: int) -> _What:
    command = site.command
    memory = Space.LINK if peer >= 0 else Space.HBM
    src = dst = Space.TCM
    src_param = dst_param = -1
    if isinstance(command, DmaRead | Atomic):
        src, src_param = memory, access_of(command).param
    if isinstance(command, DmaWrite | Atomic):
        dst, dst_param = memory, access_of(command).param
    return _What(
        site.queue.engine, site.kind, command.line, programs, peer, -1,
        src, dst, src_param, dst_param,
    )  # fmt: skip


def _bounds(intervals: list[tuple[int, int]]) -> tuple[Column, Column]:
    table = np.array(intervals, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
