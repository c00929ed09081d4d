"""The verdict on a candidate, as a person, a program or a shell reads it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

from kernbench.errors import UsageError
from kernbench.report import format_ns

SCHEMA = "kernbench.judge/1"
"""The name and version of the JSON form; the version grows when a key changes its meaning."""
_MOST_LINES = 40
_MOST_KERNELS = 5


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
class TimedKernel:
    """One kernel of the candidate in modeled time."""

    name: str
    launches: int
    time_ns: float
    share: float
    bound_by: str
    is_own: bool
    """Whether the candidate wrote it; False: a library's."""


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
    """CPU time of the judge."""
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
        found = _schema_of(cls)
        found["properties"]["exit_code"] = {"enum": sorted(EXIT_CODES.values())}
        return found

    @classmethod
    def of(cls, given: dict[str, Any]) -> Verdict:
        """Return the verdict that :meth:`to_dict` gave.

        Raises:
            UsageError: It is of another version.
        """
        if given.get("schema") != SCHEMA:
            raise UsageError(f"a verdict of schema {given.get('schema')!r}, but this is {SCHEMA}")
        plain = {key: value for key, value in given.items() if key != "exit_code"}
        plain["outcome"] = Outcome(plain["outcome"])
        if plain["failure"] is not None:
            plain["failure"] = Failure(**plain["failure"])
        plain["sizes"] = [SizeResult(**each) for each in plain["sizes"]]
        plain["times"] = [
            MachineTime(**{**each, "kernels": [TimedKernel(**k) for k in each["kernels"]]})
            for each in plain["times"]
        ]
        return cls(**plain)

    def to_markdown(self) -> str:
        """Return the verdict in at most 40 lines, for whoever writes the next candidate."""
        lines = [f"**{self.outcome}**: {self.why}", ""]
        lines += [f"- {each}" for each in self.tricks]
        if self.failure is not None:
            failure = self.failure
            lines += [f"- smallest failing case: size {failure.size}, {failure.values} values"]
            lines += [f"- {failure.says}"]
            lines += [f"- written by {failure.line}"] if failure.line else []
        for each in self.times:
            lines += ["", f"{each.machine}, size {each.size}: {speed_line(each)}", ""]
            lines += ["| kernel | time | share | bound by |", "| --- | --- | --- | --- |"]
            lines += [
                f"| {k.name}{'' if k.is_own else ' (library)'} | {format_ns(k.time_ns)} "
                f"| {k.share:.0%} | {k.bound_by} |"
                for k in each.kernels[:_MOST_KERNELS]
            ]
            lines += [f"- {remark}" for remark in each.remarks]
        counts = {each.outcome for each in self.sizes}
        shown = [f"{sum(e.outcome == c for e in self.sizes)} {c}" for c in sorted(counts)]
        lines += ["", f"Sizes: {', '.join(shown) or 'none'}; seed {self.seed}."]
        lines += [f"- {each}" for each in self.remarks]
        if len(lines) > _MOST_LINES:
            lines = [*lines[: _MOST_LINES - 1], "- more in the JSON"]
        return "\n".join(lines) + "\n"


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


def _schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type: of plain values, lists, choices, and dataclasses."""
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"enum": list(map(str, kind))}
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        properties = {each.name: _schema_of(hints[each.name]) for each in fields(kind)}
        return {"type": "object", "properties": properties, "required": list(properties)}
    parts = [_schema_of(each) for each in get_args(kind)]
    return {"type": "array", "items": parts[0]} if get_origin(kind) is list else {"anyOf": parts}
