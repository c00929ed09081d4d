"""What one rank did, with what its host launched and waited for: what exports walk over."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kernbench.op_log import HostRange, HostSpan, Instance, OpLog, Template


@dataclass(frozen=True, slots=True)
class RankCommand:
    """A command's part on one rank."""

    instance: Instance
    position: int
    """The rank's position in the command's group."""
    after: int = 0
    """The launch id of what it waited for until it started; 0: its launch by the host."""

    @property
    def template(self) -> Template:
        return self.instance.template

    @property
    def sip(self) -> int:
        return self.instance.sips[self.position]

    @property
    def start_ps(self) -> int:
        return self.instance.starts_ps[self.position]

    @property
    def end_ps(self) -> int:
        return self.instance.ends_ps[self.position]

    @property
    def begun_ps(self) -> int:
        """When all of its ranks had come."""
        return min(max(self.instance.starts_ps), self.end_ps)


@dataclass(frozen=True, slots=True)
class HostStep:
    """A span of a rank's host, with what it launched or waited for."""

    span: HostSpan
    launched: tuple[RankCommand, ...] = ()
    awaited: RankCommand | None = None

    @property
    def start_ps(self) -> int:
        return self.span.start_ps

    @property
    def end_ps(self) -> int:
        return self.span.end_ps


@dataclass(slots=True)
class RankView:
    """What one rank did."""

    rank: int
    steps: list[HostStep] = field(default_factory=list)
    """The steps in the order of the log."""
    commands: list[RankCommand] = field(default_factory=list)
    """The commands, ordered by start; what waited for what is in their instances."""
    ranges: list[HostRange] = field(default_factory=list)


def rank_views(log: OpLog, only: Sequence[int] | None = None) -> list[RankView]:
    """Return what each rank did, or each of some ranks; ranks that did nothing are left out.

    The k-th launch of a name by a rank is the k-th of its commands of that name to start. A launch
    of a graph launches all of its commands.
    """
    chosen = None if only is None else frozenset(only)
    views: defaultdict[int, list[RankCommand]] = defaultdict(list)
    for instance in log.instances:
        for position, rank in enumerate(instance.ranks):
            if chosen is None or rank in chosen:
                after = log.number_of(instance.after[position]) if instance.after else 0
                views[rank].append(RankCommand(instance, position, after))
    by_launch = {instance.launch_id: instance for instance in log.instances}
    spans: defaultdict[int, list[HostSpan]] = defaultdict(list)
    for span in log.host_spans:
        if chosen is None or span.rank in chosen:
            spans[span.rank].append(span)
    ranges: defaultdict[int, list[HostRange]] = defaultdict(list)
    for host_range in log.host_ranges:
        if chosen is None or host_range.rank in chosen:
            ranges[host_range.rank].append(host_range)
    values = iter(log.plain_waits)
    waits = {
        (rank, end_ps): by_launch.get(log.number_of(after))
        for rank, end_ps, after in zip(values, values, values, strict=True)
    }
    result = []
    for rank in sorted(views.keys() | spans.keys() | ranges.keys()):
        commands = sorted(views[rank], key=lambda it: it.start_ps)
        steps = list(_steps(spans[rank], commands, waits, log))
        result.append(RankView(rank, steps, commands, ranges[rank]))
    return result


def _steps(
    spans: Sequence[HostSpan],
    commands: Sequence[RankCommand],
    waits: dict[tuple[int, int], Instance | None],
    log: OpLog,
) -> Iterator[HostStep]:
    waiting: defaultdict[str, deque[RankCommand]] = defaultdict(deque)
    for command in commands:
        waiting[command.template.name].append(command)
    for span in spans:
        launched: list[RankCommand] = []
        awaited = None
        if span.kind == "launch":
            names = log.graphs.get(span.label) or (span.label,)
            launched = [waiting[name].popleft() for name in names if waiting[name]]
        elif span.kind == "wait":
            ended = waits.get((span.rank, span.end_ps))
            if ended is not None and span.rank in ended.ranks:
                awaited = RankCommand(ended, ended.ranks.index(span.rank))
        yield HostStep(span, tuple(launched), awaited)


def process_groups(log: OpLog) -> dict[tuple[int, ...], str]:
    """Return the groups of all collectives, each with a name that all ranks agree on.

    The group of most ranks is ``0``.
    """
    instances = {
        tuple(sorted(instance.ranks)): None
        for instance in log.instances
        if instance.template.kind == "collective"
    }
    ordered = sorted(instances, key=lambda ranks: (-len(ranks), ranks))
    return {ranks: str(number) for number, ranks in enumerate(ordered)}


def bytes_of(op: str, message_bytes: int, num_ranks: int) -> tuple[int, int]:
    """Return the bytes that each rank of a collective gives and gets.

    ``message_bytes`` is the size as nccl-tests counts it: of the whole, where ranks have parts.
    """
    part = message_bytes // max(num_ranks, 1)
    if op in ("all_gather", "gather"):
        return part, message_bytes
    if op in ("reduce_scatter", "scatter"):
        return message_bytes, part
    return message_bytes, message_bytes
