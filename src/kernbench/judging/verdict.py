"""The verdict on a candidate, as a person, a program or a shell reads it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, cast, get_args, get_origin, get_type_hints

from kernbench.errors import UsageError
from kernbench.report import format_ns

SCHEMA = "kernbench.judge/1"
"""The name and version of the JSON form; the version grows when a key changes its meaning."""
_MOST_LINES = 40
_MOST_KERNELS = 5
_MOST_GAINS = 3


class Outcome(StrEnum):
    """What a verdict says, in one word or three."""

    FAST = "right and fast enough"
    RIGHT = "right"
    WRONG = "wrong"
    CHEAT = "cheat"
    UNKNOWN = "cannot say"


EXIT_CODES = {
    Outcome.FAST: 0,
    Outcome.RIGHT: 3,
    Outcome.WRONG: 4,
    Outcome.CHEAT: 5,
    Outcome.UNKNOWN: 6,
}
"""Exit codes of ``kernbench judge``; 1 is an error of its own, 2 wrong usage."""


@dataclass
class Failure:
    """The smallest case that failed."""

    size: str
    values: str
    """What the inputs were filled with."""
    says: str
    """What went wrong, of the first wrong element or by a check."""
    line: str = ""
    """The file and line of the kernel that wrote it, where known."""


@dataclass
class SizeResult:
    """What came out at one size."""

    size: str
    is_stated: bool
    outcome: str
    """``right``, ``wrong``, ``refused`` (the candidate raises, at a size of the judge's) or
    ``not executed``."""
    values: list[str] = field(default_factory=list)
    says: str = ""


@dataclass
class TimedLine:
    """A line of a kernel in modeled time."""

    line: str
    """``file:line``."""
    share: float
    """Of the kernel's time."""
    engine: str
    """What it keeps busy longest."""


@dataclass
class KernelResources:
    """What a program of a kernel takes of a streaming multiprocessor (another machine: of a PE)."""

    registers: int | None
    """Of each thread, as many as its tiles want; None: the machine has no threads."""
    shared_bytes: int | None
    num_warps: int
    resident: int
    """Programs that run at a time on one."""
    occupancy: float | None
    """Their warps, of the most that there may be."""


@dataclass
class Gain:
    """What a candidate would save, at most."""

    what: str
    gain_ns: float


@dataclass
class TimedKernel:
    """One kernel of the candidate in modeled time."""

    name: str
    launches: int
    time_ns: float
    share: float
    bound_by: str
    is_own: bool
    """Whether the candidate wrote it; False: a library's."""
    ceiling_ns: float = 0.0
    """Its least time at the machine's peak rates; 0: not known."""
    resources: KernelResources | None = None
    """None of a library's."""
    lines: list[TimedLine] = field(default_factory=list)
    """The costliest three of its own."""


@dataclass
class MachineTime:
    """How long a candidate takes on a machine, in modeled time."""

    machine: str
    size: str
    time_ns: float
    low_ns: float | None
    high_ns: float | None
    """Between ``low_ns`` and ``high_ns`` four of five such times would be measured; None: nothing
    like it was ever measured."""
    eager_ns: float | None
    compiled_ns: float | None
    """``torch.compile`` of the reference, where it was asked for."""
    speedup: float | None
    """The speed-up over eager."""
    speedup_low: float | None
    speedup_high: float | None
    speed: str
    """``faster``, ``slower`` or ``cannot say: measure``."""
    floor_ns: float
    """Its inputs and outputs over the bandwidth of memory: nothing is faster."""
    own_share: float
    """The part of the time that the candidate's own kernels have."""
    kernels: list[TimedKernel]
    gains: list[Gain] = field(default_factory=list)
    """The largest first."""
    remarks: list[str] = field(default_factory=list)


@dataclass
class Verdict:
    """What ``kernbench judge`` says of a candidate."""

    candidate: str
    task: str
    form: str
    outcome: Outcome
    why: str
    """One sentence."""
    seed: int
    """The seed of the judge's inputs; the same one gives the same verdict."""
    failure: Failure | None = None
    sizes: list[SizeResult] = field(default_factory=list)
    times: list[MachineTime] = field(default_factory=list)
    tricks: list[str] = field(default_factory=list)
    """What makes it a cheat, each as a sentence."""
    remarks: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    """CPU time of the judge and of the candidate."""
    schema: str = SCHEMA

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return EXIT_CODES[self.outcome]

    @property
    def is_right(self) -> bool:
        """Whether the candidate computes what the task asks for."""
        return self.outcome in (Outcome.FAST, Outcome.RIGHT)

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain values."""
        return {**asdict(self), "outcome": str(self.outcome), "exit_code": self.exit_code}

    def to_json(self) -> str:
        """Return the verdict as JSON, described in ``docs/judge.md``."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema of :meth:`to_json`."""
        schema = _schema_of(cls)
        schema["properties"]["exit_code"] = {"enum": sorted(EXIT_CODES.values())}
        return schema

    @classmethod
    def of(cls, argument: dict[str, Any]) -> Verdict:
        """Return the verdict that :meth:`to_dict` gave.

        Raises:
            UsageError: It is of another version.
        """
        if argument.get("schema") != SCHEMA:
            raise UsageError(
                f"a verdict of schema {argument.get('schema')!r}, but this is {SCHEMA}"
            )
        plain = {key: value for key, value in argument.items() if key != "exit_code"}
        verdict: Verdict = _read(cls, plain)
        return verdict

    def to_markdown(self) -> str:
        """Return the verdict in at most 40 lines, for whoever writes the next candidate."""
        lines = [f"**{self.outcome}**: {self.why}"]
        lines += [""] if self.tricks or self.failure else []
        lines += [f"- {trick}" for trick in self.tricks]
        if self.failure is not None:
            failure = self.failure
            lines += [f"- smallest failing case: size {failure.size}, {failure.values} values"]
            lines += [f"- {failure.says}"]
            lines += [f"- written by {failure.line}"] if failure.line else []
        for time in self.times:
            lines += ["", f"{time.machine}, size {time.size}: {speed_line(time)}", ""]
            lines += ["| kernel | time | share | bound by | at its peak |", "|" + " --- |" * 5]
            lines += [
                f"| {k.name}{'' if k.is_own else ' (library)'} | {format_ns(k.time_ns)} "
                f"| {k.share:.0%} | {k.bound_by} "
                f"| {format_ns(k.ceiling_ns) if k.ceiling_ns else ''} |"
                for k in time.kernels[:_MOST_KERNELS]
            ]
            lines += [""]
            lines += [line for k in time.kernels[:2] for line in _about(k)]
            lines += [
                f"- at most {format_ns(g.gain_ns)} less: {g.what}" for g in time.gains[:_MOST_GAINS]
            ]
            lines += [f"- {remark}" for remark in time.remarks]
        counts = {size.outcome for size in self.sizes}
        shown = [f"{sum(e.outcome == c for e in self.sizes)} {c}" for c in sorted(counts)]
        lines += ["", f"Sizes: {', '.join(shown) or 'none'}; seed {self.seed}."]
        lines += [f"- {remark}" for remark in self.remarks]
        if len(lines) > _MOST_LINES:
            lines = [*lines[: _MOST_LINES - 1], "- more in the JSON"]
        return "\n".join(lines) + "\n"


def _about(kernel: TimedKernel) -> list[str]:
    """Return what a program of a kernel takes, and its costliest lines."""
    lines = []
    taken = kernel.resources
    if taken is not None:
        parts = [f"{taken.num_warps} warps"]
        if taken.registers is not None and taken.shared_bytes is not None:
            parts += [f"{taken.registers} registers a thread", f"{taken.shared_bytes:,} B shared"]
        parts.append(f"{taken.resident} programs at a time")
        if taken.occupancy is not None:
            parts.append(f"occupancy {taken.occupancy:.0%}")
        lines.append(f"- {kernel.name}: {', '.join(parts)}")
    if kernel.lines:
        costs = [f"{line.line} {line.share:.0%} ({line.engine})" for line in kernel.lines]
        lines.append(f"- costliest lines of {kernel.name}: {', '.join(costs)}")
    return lines


def beside_markdown(verdicts: Sequence[Verdict]) -> str:
    """Return candidates beside each other, a row for each machine and candidate, the fastest first.

    Those that are right come first.
    """
    rows = ["| candidate | verdict | time | range | speed-up | bound by | costliest line |"]
    rows += ["|" + " --- |" * 7]
    machines = dict.fromkeys(time.machine for verdict in verdicts for time in verdict.times)
    for machine in machines or [""]:
        if len(machines) > 1:
            rows.append(f"| **{machine}** |" + " |" * 6)
        timed = [
            (verdict, next((time for time in verdict.times if time.machine == machine), None))
            for verdict in verdicts
        ]
        timed.sort(key=lambda pair: (not pair[0].is_right, pair[1].time_ns if pair[1] else 0.0))
        for verdict, time in timed:
            cells = [os.path.basename(verdict.candidate), str(verdict.outcome)]  # noqa: PTH119
            cells += [""] * 5 if time is None else _cells(time)
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows[:_MOST_LINES]) + "\n"


def _cells(time: MachineTime) -> list[str]:
    low, high = time.low_ns, time.high_ns
    kernel = time.kernels[0] if time.kernels else None
    return [
        format_ns(time.time_ns),
        "" if low is None or high is None else f"{format_ns(low)} to {format_ns(high)}",
        "" if time.speedup is None else f"{time.speedup:.2f}x",
        kernel.bound_by if kernel else "",
        kernel.lines[0].line if kernel and kernel.lines else "",
    ]


def speed_line(time: MachineTime) -> str:
    """Return a machine's time with what it is beside, in one line."""
    text = format_ns(time.time_ns)
    if time.low_ns is not None and time.high_ns is not None:
        text += f" ({format_ns(time.low_ns)} to {format_ns(time.high_ns)})"
    text += f", floor {format_ns(time.floor_ns)}"
    if time.eager_ns is not None and time.speedup is not None:
        text += f", eager {format_ns(time.eager_ns)}: {time.speedup:.2f}x, {time.speed}"
    if time.compiled_ns is not None:
        text += f"; torch.compile {format_ns(time.compiled_ns)}"
    return f"{text}; own kernels {time.own_share:.0%}"


_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def _read(kind: Any, plain: Any) -> Any:
    """Return the value of a type whose plain values these are, as :func:`_schema_of` has them."""
    if get_origin(kind) is list:
        return [_read(get_args(kind)[0], part) for part in plain]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(plain)
    if is_dataclass(kind):
        hints, make = get_type_hints(kind), cast("Any", kind)
        return make(**{name: _read(hints.get(name), part) for name, part in plain.items()})
    choices = [] if plain is None else [choice for choice in get_args(kind) if is_dataclass(choice)]
    return _read(choices[0], plain) if choices else plain


def _schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type: of plain values, lists, choices, and dataclasses."""
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"enum": list(map(str, kind))}
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        properties = {field.name: _schema_of(hints[field.name]) for field in fields(kind)}
        return {"type": "object", "properties": properties, "required": list(properties)}
    parts = [_schema_of(arg) for arg in get_args(kind)]
    return {"type": "array", "items": parts[0]} if get_origin(kind) is list else {"anyOf": parts}
