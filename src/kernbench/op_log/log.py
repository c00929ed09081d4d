"""The record of a run: templates of relative times, and their instances in virtual time.

The same kernel on the same machine in the same state has the same relative schedule, so the log
stores that schedule once (a :class:`Template`) and a small :class:`Instance` for every launch.
Rows of single commands are made from both on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, get_args

import numpy as np
import numpy.typing as npt

from kernbench.commands import Engine
from kernbench.errors import InternalError, UsageError
from kernbench.memory import AllocationLog
from kernbench.op_log.energy import ON_CLOCK, Draw, Energy, core_ps
from kernbench.op_log.uncollected import uncollected
from kernbench.outputs import whole_file

if TYPE_CHECKING:
    import pyarrow as pa

    from kernbench.op_log.program_lines import ProgramLines

Column = npt.NDArray[Any]
Kind = Literal["kernel", "collective", "copy", "fill"]
HostKind = Literal[
    "launch", "capture", "wait", "read", "python", "dispatch", "allocate", "interruption",
    "restart", "storage",
]  # fmt: skip
KINDS, HOST_KINDS = get_args(Kind), get_args(HostKind)
Site = tuple[str, int]
"""A file and a line of the program; the file is empty where they are not known."""
Each = int | tuple[int, ...]
"""Something of a command's only rank, or of every one of its ranks."""

WIDTH = 9
"""Plain values of a command, or of commands in a row."""
_ENDS = 5
"""Where a command's end is among them."""
HOST_WIDTH = 5
"""Plain values of a host span."""
_SHOWN_ROWS = 10
"""Rows of a log that a notebook shows."""


class Limit(StrEnum):
    """What can limit a kernel's speed."""

    GEMM = "GEMM"
    MATH = "math"
    HBM = "HBM"
    CACHE = "cache"
    PORT = "port"
    """Between a PE and the rest of its SIP."""
    CUBES = "cubes"
    """The links between the cubes of a SIP."""
    LAUNCH = "launch"
    """The device's front end."""
    LATENCY = "latency"
    """None of the others: filling, draining, waiting for each other."""
    POWER = "power"
    """What a lower clock adds, under a power cap."""


_CLOCKED = frozenset({Limit.GEMM, Limit.MATH, Limit.CACHE, Limit.PORT, Limit.CUBES})
_HBM = Limit.HBM
"""Members of an enumeration take a look-up of their own, and each launch asks for this one."""
ROW_COLUMNS: tuple[str, ...] = (
    "engine",  # commands.Engine value
    "kind",  # dma_read | gemm | math | reduce | dma_write | send | copy ...
    "rank",  # collectives: position in the group; -1: the instance's only rank
    "cube",
    "pe_first",
    "pe_count",
    "program_first",
    "program_count",
    "count",  # how many commands the row stands for (programs x iterations)
    "start_ps",  # relative to the instance's start
    "end_ps",
    "busy_ps",  # engine time inside [start, end], averaged over pe_count engines
    "bytes",
    "flops",
    "src_space",
    "dst_space",
    "src_param",  # parameter index whose address is the source (-1 none)
    "dst_param",
    "step",  # collectives: step and chunk; -1 elsewhere
    "chunk",
    "peer",  # the other rank: collectives, its position in the group; kernels, its number; or -1
    "link",  # index into the machine's links; -1 elsewhere
    "file",
    "line",
)


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """One schedule in relative time. ``make_rows`` builds its rows only when they are read."""

    name: str
    """Kernel name, or the collective's op, e.g. ``all_reduce``."""
    kind: Kind
    algorithm: str
    """Collective algorithm, ``""`` for others."""
    duration_ps: int
    flops: int
    hbm_bytes: int
    """HBM bytes moved, over all ranks that take part."""
    engine_busy_ps: Mapping[Engine, int]
    """Busy time per engine, averaged over the SIP's engines of that sort."""
    message_bytes: int
    """Collectives: the message size as nccl-tests counts it; 0 elsewhere."""
    make_rows: Callable[[], dict[str, Column]] = field(repr=False)
    """Columns named in ROW_COLUMNS, all of one length or 0-d; absent ones take their default."""
    bound_ps: int = 0
    """Least time that the SIP's peak rates allow for this work; 0 when it was not computed."""
    limits_ps: Mapping[Limit, int] = field(default_factory=dict)
    """How long each limit would take by itself, averaged over the SIP's parts of that sort; the
    latency is what is left of the duration. Empty where it was not computed."""
    hbm_bytes_by_rank: tuple[int, ...] = ()
    """Collectives: ``hbm_bytes`` by position in the group; empty where ranks share it evenly."""
    comm_ps: int = 0
    """Kernels: time in which bytes travel to or from other SIPs, or a signal is waited for, and
    nothing runs on the SIP itself."""

    family: str = ""
    """Kernels: the category of measured rows (``kernbench validate``) whose error its time has;
    empty where nothing like it was measured."""
    size_bytes: int = 0
    """Kernels: what ``make_rows`` keeps in memory, about."""
    launched_with: Mapping[str, Any] = field(default_factory=dict)
    """What it was launched with, as JSON has it. Kernels: ``grid``, ``num_warps``, and
    ``arguments``, integers and constants by parameter; operations of PyTorch: ``shapes`` and
    ``dtypes`` of the tensors that they take; collectives: ``itemsize`` in bytes, and the position
    of the ``root`` in the group, or of a sender."""
    energy_pj: Mapping[Energy, int] = field(default_factory=dict)
    """What the work takes beside the idle device, over all ranks that take part; empty where the
    machine says nothing of energy."""

    @property
    def hbm_ps(self) -> int:
        """How long HBM is busy with the bytes, 0 where that was not computed."""
        return self.limits_ps.get(_HBM, 0)

    def draw(self, duration_ps: int, num_ranks: int = 1) -> Draw:
        """Return what each of its ranks draws beside the idle device over ``duration_ps``."""
        limits = self.limits_ps
        if not self.energy_pj or not duration_ps:
            return Draw()
        total = sum(self.energy_pj.values())
        clocked = sum(self.energy_pj.get(part, 0) for part in ON_CLOCK)
        taken_ps = duration_ps - limits.get(Limit.LAUNCH, 0)
        others = [ps for limit, ps in limits.items() if limit in _CLOCKED]
        core = taken_ps if limits.get(Limit.POWER) else core_ps(taken_ps, self.hbm_ps, others)
        return Draw(
            1000 * clocked // (duration_ps * num_ranks),
            1000 * (total - clocked) // (duration_ps * num_ranks),
            core / duration_ps if limits else 0.0,
        )


@dataclass(slots=True, eq=False)
class Instance:
    """One launch or collective: a template placed in virtual time.

    A kernel or copy has one rank; a collective has one entry per rank of its group, in group
    order, and its rows are relative to the earliest start.
    """

    template: Template
    launch_id: int
    ranks: tuple[int, ...]
    sips: tuple[int, ...]
    starts_ps: tuple[int, ...]
    ends_ps: tuple[int, ...]
    stream: str
    addresses: tuple[int, ...] = ()
    """Addresses of the pointer arguments, by parameter index (0 for others)."""
    after: tuple[int, ...] = ()
    """For each rank, what it waited for until it started, for :meth:`OpLog.number_of`; 0 or left
    out: its launch by the host."""


def absolute_ps(instances: Sequence[Instance], times_ps: Column) -> Column:
    """Return relative times of a template as absolute ones, as [instance, time].

    An instance that others slowed down took longer than its template: what comes after its last
    start is stretched evenly.
    """
    bases = np.array([min(instance.starts_ps) for instance in instances], dtype=np.int64)[:, None]
    duration_ps = instances[0].template.duration_ps
    spans = (
        np.array([max(instance.ends_ps) for instance in instances], dtype=np.int64)[:, None] - bases
    )
    if (spans <= duration_ps).all():
        return bases + times_ps
    leads = (
        np.array([max(instance.starts_ps) for instance in instances], dtype=np.int64)[:, None]
        - bases
    )
    stretch = (spans - leads) / np.maximum(duration_ps - leads, 1)
    late = np.rint(np.maximum(times_ps - leads, 0) * np.maximum(stretch, 1)).astype(np.int64)
    return bases + np.minimum(np.minimum(times_ps, leads) + late, spans)  # type: ignore[no-any-return]


@dataclass(slots=True)
class HostSpan:
    """Time that a rank's host spent, by what it did.

    It launches, waits, reads, runs Python, calls operations without a kernel (``dispatch``), or
    gets memory from the driver (``allocate``). By a scenario it is interrupted, or started again
    after a failure (``restart``). It writes or reads checkpoints (``storage``).

    A launch is labelled with the name of the template that it launches, or of the graph. What a
    capture records for one is launched by nothing.
    """

    rank: int
    kind: HostKind
    label: str
    start_ps: int
    end_ps: int


@dataclass(frozen=True, slots=True)
class HostRange:
    """A part of a rank's host time that its program has named; ranges may nest."""

    rank: int
    name: str
    start_ps: int
    end_ps: int


class OpLog:
    """Everything that a run did, in the order in which it completed.

    What one rank does between two waits comes in numbers: :attr:`plain_instances` and
    :attr:`plain_spans` take it as plain values, which become objects when they are read:
    until then Python's search for garbage has nothing to look at.
    """

    def __init__(self) -> None:
        self.path = ""
        """The file that it was read from; empty where its run was of this process."""
        self.plain_instances: list[Any] = []
        """Nine values for commands in a row: lists of launches, templates, starts and ends behind
        the number of the first, ranks, SIPs and stream that they have in common, and what the first
        one waited for."""
        self.plain_commands: list[Any] = []
        """Nine values for one command: its number, then the fields of an :class:`Instance` but for
        that. What is a tuple there may be a number here, of a single rank."""
        self.plain_waits: list[int] = []
        """Three values for a span of waiting: its rank, its end, what it ended with."""
        self.woken: list[tuple[int, int, int]] = []
        """Waits that a rank's host ended, in order: who waited, until when, and that rank."""
        self.collectives: list[int] = []
        """The numbers of collectives in the order in which they started; 0: it has not ended."""
        self.plain_spans: list[Any] = []
        """Five values each, those of a :class:`HostSpan`."""
        self.host_ranges: list[HostRange] = []
        self.sites: dict[int, tuple[Site, ...]] = {}
        """Where the ranks called a collective, by its launch id."""
        self.allocations: AllocationLog | None = None
        """What was allocated on devices; None in a run that does not record it."""
        self.program_lines: ProgramLines | None = None
        """Which lines of the program caused what; None in a run that does not record it."""
        self.running: tuple[int, ...] | None = None
        """The ranks that ran, where they stand for all others (ADR-0166); None: all did."""
        self.graphs: dict[str, tuple[str, ...]] = {}
        """The names of the templates that a launch with the label of a graph launches."""
        self._instances: list[Instance] = []
        self._host_spans: list[HostSpan] = []

    @property
    def instances(self) -> list[Instance]:
        in_rows, commands = self.plain_instances, self.plain_commands
        if in_rows or commands:
            with uncollected():
                result = [
                    _placed(*item)
                    for values in zip(*[iter(in_rows)] * WIDTH, strict=True)
                    for item in values_in_a_row(*values)
                ]
                result += [
                    _placed(*values) for values in zip(*[iter(commands)] * WIDTH, strict=True)
                ]
                self._instances += sorted(result, key=lambda instance: instance.launch_id)
            in_rows.clear()
            commands.clear()
        return self._instances

    @property
    def is_plain(self) -> bool:
        """Whether nobody has asked for objects of its commands."""
        return not self._instances

    @property
    def host_spans(self) -> list[HostSpan]:
        plain = self.plain_spans
        if plain:
            values = iter(plain)
            with uncollected():
                self._host_spans += map(HostSpan, *[values] * HOST_WIDTH)
            plain.clear()
        return self._host_spans

    @property
    def has_plain_spans(self) -> bool:
        """Whether nobody has asked for objects of its host spans."""
        return not self._host_spans

    def ranks_of(self, num_ranks: int) -> Sequence[int]:
        """Return the ranks of so many that ran."""
        return range(num_ranks) if self.running is None else self.running

    def number_of(self, after: int) -> int:
        """Return the launch id behind what a command or a host waited for; 0 for none.

        Others may wait for a rank's part of a collective before all of it has ended, and thus has
        a launch id: negative numbers are collectives in the order in which they started.
        """
        return self.collectives[-after - 1] if after < 0 else after

    def about(self, text: str) -> str:
        """Return what is said of this log, behind the file that it was read from."""
        return f"{self.path}: {text}" if self.path else text

    def contradiction(self, text: str) -> Exception:
        """Return the error for a log that cannot be: its file is damaged, or it is our mistake."""
        return UsageError(f"{self.path} is damaged: {text}") if self.path else InternalError(text)

    def append(self, instance: Instance) -> None:
        self.instances.append(instance)

    def __len__(self) -> int:
        in_rows = sum(map(len, self.plain_instances[WIDTH - 1 :: WIDTH]))
        return len(self._instances) + in_rows + len(self.plain_commands) // WIDTH

    def __repr__(self) -> str:
        return f"OpLog({len(self)} launches, {self.end_ps / 1e6:.2f} us)"

    def _repr_html_(self) -> str:
        """Show how much there is, and the first commands, in a notebook."""
        from kernbench.op_log.arrow import batches

        # Not all at once: a log may have more rows than there is memory for.
        shown, num_rows = None, 0
        for batch in batches(self):
            num_rows += batch.num_rows
            shown = batch.slice(0, _SHOWN_ROWS) if shown is None else shown
        count = f"{len(self)} launches, {num_rows} commands"
        if shown is None:
            return f"<p>{count}</p>"
        head = "".join(f"<th>{escape(name)}</th>" for name in shown.column_names)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(str(v))}</td>" for v in row.values()) + "</tr>"
            for row in shown.to_pylist()
        )
        more = f"<p>the first {_SHOWN_ROWS}</p>" if num_rows > _SHOWN_ROWS else ""
        table = f"<table><tr>{head}</tr>{body}</table>"
        return f'<p>{count}</p><div style="overflow-x:auto">{table}</div>{more}'

    @property
    def end_ps(self) -> int:
        """When the last work on a device or a host ended."""
        ends_ps = [max(instance.ends_ps) for instance in self._instances]
        ends_ps += [max(plain, default=0) for plain in self.plain_instances[WIDTH - 1 :: WIDTH]]
        of_commands = self.plain_commands[_ENDS::WIDTH]
        ends_ps += [max(command) if type(command) is tuple else command for command in of_commands]
        ends_ps += [span.end_ps for span in self._host_spans]
        ends_ps += self.plain_spans[HOST_WIDTH - 1 :: HOST_WIDTH]
        return max(ends_ps, default=0)

    def to_arrow(self) -> pa.Table:
        """Return one row per batched command, in absolute time (schema: ``op_log.schema``)."""
        from kernbench.op_log.arrow import to_table

        return to_table(self)

    def write_parquet(self, path: Path | str, *, machine: str, ranks: int) -> int:
        """Write the rows of :meth:`to_arrow` to a Parquet file and return how many there are.

        Rows are made and written in batches, so memory does not grow with the log. The same
        program, machine and seed give the same bytes.

        Raises:
            OutputError: The file cannot be written; then what was there is still there.
        """
        with whole_file(path) as out:
            return self.dump_parquet(out, machine=machine, ranks=ranks)

    def dump_parquet(self, out: BinaryIO, *, machine: str, ranks: int) -> int:
        """Write what :meth:`write_parquet` does to a file that is open."""
        from kernbench.op_log.arrow import dump_parquet

        return dump_parquet(self, out, machine=machine, ranks=ranks)


def _placed(
    number: int,
    template: Template,
    ranks: Each,
    sips: Each,
    starts_ps: Each,
    ends_ps: Each,
    stream: str,
    after: Each,
    addresses: tuple[int, ...],
) -> Instance:
    item = [
        values if type(values) is tuple else (values,)
        for values in (ranks, sips, starts_ps, ends_ps)
    ]
    afters = after if type(after) is tuple else (after,)
    return Instance(template, number, *item, stream, addresses, afters)  # type: ignore[call-arg, arg-type]


def values_in_a_row(
    first: int,
    ranks: Each,
    sips: Each,
    stream: str,
    after: int,
    launched_ps: Sequence[int],
    *columns: Sequence[Any],
) -> Iterator[tuple[Any, ...]]:
    """Yield the plain values of single commands, of those of commands in a row."""
    rows = zip(launched_ps, *columns, strict=True)
    for number, (launched, template, start_ps, end_ps) in enumerate(rows, first):
        waited_for = 0 if start_ps <= launched else after if number == first else number - 1
        yield (number, template, ranks, sips, start_ps, end_ps, stream, waited_for, ())
