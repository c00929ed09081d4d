"""What each rank of a run did, in words that are equal for ranks that do the same.

Told are the actions of ADR-0155 without what says which rank they are of: its number, its SIP, the
addresses that it has, and numbers that change no time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from kernbench.memory import steps_in_use
from kernbench.op_log import UNKNOWN_SITE, OpLog, Site
from kernbench.report import format_ns, format_size
from kernbench.runtime_api import Action, RuntimeContext

_WIDTH = 4
_COUNTED = {
    Action.HOST_LAUNCH: "launches",
    Action.POLL: "queries",
    Action.HOST_POLL: "queries",
    Action.HOST_GLANCE: "looks at other ranks",
    Action.HOST_CLOCK: "readings of clocks",
    Action.HOST_WAIT: "waits",
    Action.BLOCK: "waits",
    Action.HOST_ALLOCATE: "calls of cudaMalloc",
}
"""What takes time of a host and leaves no trace on its device, or is done more often by chance."""
_NAMED = {
    Action.MARK: ("an event", 0),
    Action.HOST_MARK: ("an event", 0),
    Action.GRAPH_MARK: ("an event in a graph", 0),
    Action.STREAM_WAITS: ("a stream's wait", 2),
    Action.STREAM_IS_BEHIND: ("a stream's wait", 2),
    Action.HOST_STREAM_WAITS: ("a stream's wait", 2),
    Action.GRAPH_STREAM_WAITS: ("a stream's wait in a graph", 2),
    Action.HOST_READ: ("a read of the device", None),
}
"""What needs no description, and which of its numbers is a stream."""
_ON_WORK = {
    Action.LAUNCH: 2,
    Action.TRANSFER: 2,
    Action.KEPT_LAUNCH: 2,
    Action.COPY: 1,
    Action.GRAPH_COPY: 1,
}
"""What has a work for its first number, and which of its numbers is a stream."""
_MOST_SHOWN = 120
"""Characters of what an action is of."""
_PYTHON = "calls of Python"


class Deed(NamedTuple):
    """One thing that a rank did."""

    name: str
    detail: str
    """What tells it from others of its name: what it is of, and on which stream."""
    site: Site
    host: tuple[tuple[str, int], ...]
    """What the host took time for since the one before, and how often."""


class RankWork(NamedTuple):
    """What one rank did."""

    deeds: list[Deed]
    kernels: dict[tuple[str, int], int]
    """How many commands of a name took how long, if nothing slowed them down."""
    host_ps: int
    """How long its host was busy."""
    allocated: list[tuple[int, Site]]
    """The sizes of what it allocated on its device, and where."""
    peak_bytes: int


class RankDifference(NamedTuple):
    """Where ranks part."""

    text: str
    is_of_work: bool
    """Whether they do other things, rather than the same in another time."""


def work_of_ranks(context: RuntimeContext) -> dict[int, RankWork]:
    """Return what each rank did in a run that kept actions with lines, lines and memory."""
    run = context.run
    actions, log = run.actions(), context.op_log
    assert actions is not None
    assert run.keeper is not None
    assert log.allocations is not None
    telling, sites = _Telling(actions.described), run.keeper.sites()
    kernels, hosts_ps = _kernels(log), busy_ps(log)
    work = {}
    for actor in actions.actors:
        if actor.number not in sites:
            continue  # main's, which starts ranks and waits for them
        rank = actor.rank
        rows = zip(*[iter(actor.values)] * _WIDTH, strict=True)
        entries = [entry for entry in log.allocations.entries if entry.rank == rank]
        in_use = steps_in_use(entries)[2]
        work[rank] = RankWork(
            list(telling.deeds(rank, zip(rows, sites[actor.number], strict=True))),
            kernels.get(rank, {}),
            hosts_ps.get(rank, 0),
            [(entry.size_bytes, (entry.file, entry.line)) for entry in entries],
            int(max(in_use, default=0)),
        )
    return work


def groups_of(context: RuntimeContext) -> list[tuple[int, ...]]:
    """Return the groups in which the ranks of a run called collectives."""
    actions = context.run.actions()
    assert actions is not None
    of_all = [item for item in actions.described["meetings"] if not item["call"]]
    return list(dict.fromkeys(tuple(item["ranks"]) for item in of_all))


def busy_ps(log: OpLog) -> dict[int, int]:
    """Return for how long each rank's host did something else than wait."""
    ps: dict[int, int] = {}
    for span in log.host_spans:
        if span.kind != "wait":
            ps[span.rank] = ps.get(span.rank, 0) + span.end_ps - span.start_ps
    return ps


def first_difference(known: RankWork, other: RankWork, *, rank: int) -> RankDifference | None:
    """Return where another rank first does not do what ``rank`` does; None if it does.

    What it does comes before the memory that it needs, and before the time that its host takes.
    """
    for mine, its in zip_longest(known.deeds, other.deeds):
        if mine is None or its is None or mine[:2] != its[:2]:
            has_name = mine is not None and its is not None and mine.name == its.name
            text = f"{_told(its, has_name)} instead of {_told(mine, has_name)}"
            return RankDifference(text, is_of_work=True)
    return _other_memory(known, other, rank) or _other_time(known, other)


def other_calls(known: RankWork, others: Iterable[RankWork]) -> int:
    """Return how many calls of Python differ from those of others that did the same work.

    Between any two actions that is what the one counts that differs most.
    """
    columns = [
        [sum(count for name, count in deed.host if name == _PYTHON) for deed in work.deeds]
        for work in (known, *others)
    ]
    return sum(max(abs(item - mine) for item in rest) for mine, *rest in zip(*columns, strict=True))


def _told(deed: Deed | None, with_detail: bool) -> str:
    if deed is None:
        return "nothing"
    detail = f" {deed.detail}" if with_detail else ""
    if len(detail) > _MOST_SHOWN:
        detail = f"{detail[:_MOST_SHOWN]}..."
    return f"{deed.name}{detail}{_at(deed.site)}"


def _at(site: Site) -> str:
    return "" if site == UNKNOWN_SITE else f" at {Path(site[0]).name}:{site[1]}"


def _other_memory(known: RankWork, other: RankWork, rank: int) -> RankDifference | None:
    if known.peak_bytes == other.peak_bytes:
        return None
    text = (
        f"at most {format_size(other.peak_bytes)} of memory instead of "
        f"{format_size(known.peak_bytes)}"
    )
    for mine, its in zip_longest(known.allocated, other.allocated):
        if mine is None or its is None or mine[0] != its[0]:
            took = "nothing" if its is None else f"{format_size(its[0])}{_at(its[1])}"
            instead = "nothing" if mine is None else f"{format_size(mine[0])}{_at(mine[1])}"
            text += f"; the first to differ is {took}, where rank {rank} allocates {instead}"
            break
    return RankDifference(text, is_of_work=True)


def _other_time(known: RankWork, other: RankWork) -> RankDifference | None:
    # What differs in time alone was called in the same order.
    for mine, its in zip(known.deeds, other.deeds, strict=True):
        if mine.host != its.host:
            more, fewer = Counter(dict(its.host)), Counter(dict(mine.host))
            counts = {key: more[key] - fewer[key] for key in more | fewer}
            listed = ", ".join(f"{count:+,} {key}" for key, count in counts.items() if count)
            by_ps = other.host_ps - known.host_ps
            text = f"{listed} before {_told(its, with_detail=False)}"
            if by_ps:
                longer = "longer" if by_ps > 0 else "less long"
                text += f"; its host is busy {format_ns(abs(by_ps) / 1000)} {longer} in all"
            return RankDifference(text, is_of_work=False)
    if known.kernels != other.kernels:
        keys = {*known.kernels, *other.kernels}
        name, _ = min(k for k in keys if known.kernels.get(k) != other.kernels.get(k))
        return RankDifference(f"{name} takes another time", is_of_work=False)
    return None


def _kernels(log: OpLog) -> dict[int, dict[tuple[str, int], int]]:
    kernels: dict[int, dict[tuple[str, int], int]] = {}
    for instance in log.instances:
        template = instance.template
        if template.kind == "collective":
            continue
        for rank in instance.ranks:
            counts = kernels.setdefault(rank, {})
            key = (template.name, template.duration_ps)
            counts[key] = counts.get(key, 0) + 1
    return kernels


class _Telling:
    """Tells actions, by what their numbers stand for."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        self._described = described
        self._spends, self._owed = described.get("spends", ()), described.get("owed", ())
        self._details: dict[int, str] = {}
        """Details of works, by their numbers."""

    def deeds(self, rank: int, rows: Iterator[tuple[Any, Site]]) -> Iterator[Deed]:
        """Yield what a rank did, in order."""
        host: Counter[str] = Counter()
        for (kind, a, b, c), site in rows:
            self._count(host, kind, (a, b, c))
            told = self._told(kind, (a, b, c), rank)
            if told is not None:
                yield Deed(*told, site, tuple(sorted(host.items())))
                host.clear()
        # All have an end, with something before it or not.
        yield Deed("the end", "", UNKNOWN_SITE, tuple(sorted(host.items())))

    def _count(self, host: Counter[str], kind: int, numbers: tuple[int, int, int]) -> None:
        """Add what the host takes time for in an action."""
        a, b, c = numbers
        counted = _COUNTED.get(Action(kind))
        if counted is not None:
            host[counted] += 1
        calls, owed = 0, 0
        if kind == Action.PAY:
            calls, owed = a, b
        elif kind == Action.SPEND:
            _, _, calls, owed = self._spends[a]
        elif kind == Action.OPERATION:
            _, _, calls, owed = self._spends[c]
        elif kind == Action.HOST_WAIT and c:
            _, _, calls, owed = self._spends[c - 1]
        if calls:
            host[_PYTHON] += calls
        if owed:
            for name, count in self._owed[owed - 1]:
                host[name] += count

    def _told(self, kind: int, numbers: tuple[int, int, int], rank: int) -> tuple[str, str] | None:
        """Return the name of an action and what is particular to it; None if it is none of work."""
        a, b, c = numbers
        action = Action(kind)
        if action in _NAMED:
            name, place = _NAMED[action]
            return name, "" if place is None else self._on(numbers[place])
        if action in _ON_WORK:
            name = self._described["works"][a]["name"]
            return name, self._detail(a) + self._on(numbers[_ON_WORK[action]])
        if kind == Action.OPERATION:
            return self._spends[c][0], self._detail(a) + self._on(b)
        if kind == Action.GRAPH_OPERATIONS:
            works = self._described["tuples"][a]
            return "a graph", f"of {'; '.join(map(self._detail, works))}" + self._on(b)
        if kind == Action.ARRIVE:
            return self._part(a, b, rank)
        if kind == Action.HOST_SLEEP:
            return "time.sleep", f"of {format_ns(a / 1000)}"
        return None

    def _part(self, meeting: int, work: int, rank: int) -> tuple[str, str]:
        value, part = self._described["meetings"][meeting], self._described["works"][work]
        ranks = value["ranks"]
        if value["call"]:
            among = f"between ranks {' and '.join(f'{item - rank:+}' for item in ranks)}"
        else:
            among = f"among {len(ranks)} ranks, {_steps(ranks)} apart"
        name = (part["called"] or value["title"]).partition(" #")[0]
        dtype = part["dtype"]
        what = [
            f"of {'' if dtype is None else dtype[0]} {_shown(part['shapes'])}",
            f"in parts {_shown(part['sent'])} for {_shown(part['taken'])}" if part["sent"] else "",
            f"by {part['reduce_op']}" if part["reduce_op"] else "",
            f"from {part['root']}" if part["root"] else "",
            among,
        ]
        return name, " ".join(filter(None, what)) + self._on(part["stream"])

    def _on(self, stream: int) -> str:
        """Return which stream of its device one is, if it is not the first one."""
        if stream < 0:
            return ""
        _, index = self._described["streams"][stream]
        return f" on stream {index}" if index else ""

    def _detail(self, work: int) -> str:
        detail = self._details.get(work)
        if detail is None:
            detail = self._details[work] = _detail(self._described["works"][work])
        return detail


def _detail(work: Mapping[str, Any]) -> str:
    """Return what tells a work from others of its name, but for numbers without a shape."""
    if "grid" in work:
        return f"of grid {_shown(work['grid'])}"
    if "bytes" in work:
        return f"of {work['bytes']:,} bytes"
    value = work.get("given", ())
    if work["kind"] == "streamed":
        _, read, written, _ = value
        return f"of {read:,} bytes read and {written:,} written"
    operands = ", ".join(_operands(value))
    return f"of {operands}" if operands else ""


def _operands(value: Any) -> Iterator[str]:
    """Yield the tensors in the description of an operation."""
    if isinstance(value, Mapping):
        tensor = value.get("tensor")
        if tensor is not None:
            shape, strides, dtype = tensor[:3]
            yield f"{dtype} {_shown(shape)} by {_shown(strides)}"
            return
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _operands(item)


def _shown(numbers: Any) -> str:
    if isinstance(numbers, (list, tuple)):
        return f"[{', '.join(map(_shown, numbers))}]"
    return str(numbers)


def _steps(ranks: Sequence[int]) -> str:
    """Return how far ranks of a group are from each other, in few words."""
    steps = dict.fromkeys(b - a for a, b in pairwise(ranks))
    return " or ".join(map(str, steps)) or "0"
