"""How far off a run's time is likely to be: the published errors of what its time is of."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from kernbench.op_log import Limit, OpLog, Template
from kernbench.report.idle import idle_parts
from kernbench.report.units import format_ns

if TYPE_CHECKING:
    from kernbench.hardware import Machine
    from kernbench.report.summary import RankReport

HOST = "host"
"""The family of time in which the device waits for the host to launch."""
_COLLECTIVES = "collectives"
_PROGRAMS = "programs"
"""The category of whole programs."""
_LEAST_SHARE = 0.01


class FamilyAccuracy(TypedDict):
    """How far off the model is for a family of kernels."""

    family: str
    """A category of ``kernbench validate``, or ``host``."""
    error_percent: float | None
    """Mean of modeled over measured time less one, absolute, over the machine's published rows;
    None if there are none."""
    rows: int
    """How many measured rows that is of."""
    elsewhere_percent: NotRequired[float]
    """Where there are none: the same over the published rows of all other machines."""
    elsewhere_rows: NotRequired[int]
    programs_percent: NotRequired[float]
    """Where no machine has any: the same over whole programs on the machine, of which it is part.
    """
    programs_rows: NotRequired[int]


class FamilyReport(FamilyAccuracy):
    """What such a family takes of the ranks' time besides."""

    share: float
    """Share of the time of all ranks."""


class KindRange(TypedDict):
    """What measured times of a kind of kernels are, as multiples of the modeled one."""

    kind: str
    share: float
    """Share of the time that is the range's."""
    low: float
    """Four of five measured times are from this multiple to ``high``."""
    high: float
    rows: int
    """How many measured rows that is of."""


class TimeRange(TypedDict):
    """Between what times four of five such runs would be measured (ADR-0250)."""

    low_ns: float
    high_ns: float
    kinds: list[KindRange]


@cache
def _published() -> Mapping[str, Any]:
    """Return what ``validate --publish`` wrote."""
    path = resources.files("kernbench.report") / "published_errors.json"
    data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


@cache
def published_errors() -> Mapping[str, Mapping[str, tuple[int, float]]]:
    """Return (rows, error in percent) by machine and family, as ``validate --publish`` wrote."""
    return {
        machine: {family: (rows, error) for family, (rows, error) in families.items()}
        for machine, families in _published()["errors"].items()
    }


Ranges = Mapping[str, Mapping[str, tuple[int, float, float]]]
"""Rows by machine and kind, and the multiples between which four of five measured times are.

Beside machines stand makers of chips, and all machines (``ELSEWHERE``)."""


def likenesses(machine: Machine) -> tuple[str, ...]:
    """Return whose rows a machine's ranges are of, the likest first: its own, its maker's, all.

    Chips of a maker share the letters of their kernel libraries, ``sm`` or ``gfx``; rows of them
    all say nothing of a chip that none of these libraries is for.
    """
    spec = machine.spec
    maker = "".join(takewhile(str.isalpha, spec.kernel_library or ""))
    return (spec.name, f"{maker}*", ELSEWHERE) if maker else (spec.name,)


def range_of(
    time_ns: float, shares: Mapping[str, float], like: Sequence[str], ranges: Ranges | None = None
) -> TimeRange | None:
    """Return the range of a run's time from what it is of; None where nothing was published.

    ``shares`` are times or shares by kind, ``like`` the machine's ``likenesses``. Errors of a kind
    are alike and so add up; one of which a machine has too few rows has those of its maker's or of
    all machines, and one that none has those of all kinds: these are wider. What is like nothing
    that was measured is ``UNKNOWN``.
    """
    known = _published().get("ranges", {}) if ranges is None else ranges
    total = sum(shares.values())
    if not (total and ELSEWHERE in known):
        return None
    kinds: list[KindRange] = []
    for kind, share in sorted(shares.items(), key=lambda pair: (-pair[1], pair[0])):
        of_kind = (known[name][kind] for name in like if kind in known.get(name, {}))
        general = known[ELSEWHERE][ELSEWHERE] if ELSEWHERE in like else UNKNOWN
        rows, low, high = next(of_kind, general)
        share = round(share / total, 6)
        kinds.append({"kind": kind, "share": share, "low": low, "high": high, "rows": rows})
    low, high = (sum(kind["share"] * kind[end] for kind in kinds) for end in ("low", "high"))
    return {"low_ns": time_ns * low, "high_ns": time_ns * high, "kinds": kinds}


ELSEWHERE = "*"
UNKNOWN = (0, 0.5, 2.0)
"""Half to double: an assumption, of no rows."""
_KINDS = (
    ("norms", ("norm",)),
    ("softmax", ("softmax",)),
    ("pooling", ("pool",)),
    ("scans", ("cum",)),
    ("sorts", ("sort", "topk", "kthvalue", "median", "unique")),
    ("recurrent", ("rnn", "lstm", "gru")),
    ("losses", ("loss", "kl_div")),
    ("gathers", ("index", "gather", "scatter", "embedding", "take", "masked")),
    ("reductions", ("sum", "mean", "amax", "amin", "arg", "max", "min", "var", "std", "prod")),
)
"""Kinds of PyTorch's operations, by what is in their names: the first that has a word."""
_STREAMS = "Triton streams"
"""Of kernels that are not PyTorch's, those that memory takes more than half of the time: what
bounds them is known well on every machine (ADR-0280)."""
_OF_TRITON = {"gemm": "Triton products", "membound": "Triton kernels"}


def kind_of(template: Template) -> str:
    """Return of what kind a kernel is, whose errors are alike.

    >>> kind_of(Template(name="aten.native_layer_norm", kind="kernel", algorithm="", duration_ps=0,
    ...     flops=0, hbm_bytes=0, engine_busy_ps={}, message_bytes=0, make_rows=dict,
    ...     family="membound"))
    'norms'
    """
    dialect, dot, name = template.name.rpartition(".")
    if not (dot and dialect.startswith("aten")):
        by_memory = 2 * template.limits_ps.get(Limit.HBM, 0) > template.duration_ps
        if by_memory and template.family in ("", *_OF_TRITON):
            return _STREAMS
        return _OF_TRITON.get(template.family, template.family or "by bytes alone")
    if not template.family:
        return "by bytes alone"
    if template.family == "convolution" and "norm" not in name:
        return "transposed convolutions" if "transpose" in name else "convolutions"
    if template.family not in ("membound", "convolution") and "rnn" not in name:
        return template.family
    kinds = (kind for kind, words in _KINDS if any(word in name for word in words))
    return next(kinds, "elementwise")


def published_error(machine: str, family: str) -> FamilyAccuracy:
    """Return a family's published error on a machine, or that on all others if it has none.

    Of other machines it is the mean over their rows. What nobody measures by itself, convolutions
    above all, has the error of the machine's whole programs. A machine of which nothing that the
    engine ran was measured has none of anything.
    """
    of_machine = published_errors().get(machine)
    if of_machine is None:
        return {"family": family, "error_percent": None, "rows": 0}
    rows, error = of_machine.get(family, (0, None))
    family_accuracy: FamilyAccuracy = {"family": family, "error_percent": error, "rows": rows}
    if error is None:
        others = [item[family] for item in published_errors().values() if family in item]
        num_rows = sum(rows for rows, _ in others)
        if num_rows:
            mean = sum(rows * percent for rows, percent in others) / num_rows
            family_accuracy |= {"elsewhere_percent": round(mean, 1), "elsewhere_rows": num_rows}
        elif _PROGRAMS in of_machine:
            rows, percent = of_machine[_PROGRAMS]
            family_accuracy |= {"programs_percent": percent, "programs_rows": rows}
    return family_accuracy


def accuracy_of(
    log: OpLog,
    machine: Machine,
    per_rank: list[RankReport],
    times_ps: Iterable[tuple[Template, int]],
) -> tuple[list[FamilyReport], dict[str, float]]:
    """Return the families that the ranks' time is of, the longest first, and its parts by kind.

    ``times_ps`` has every template with the time of all its launches.
    Empty for a machine that models no device. Kernels share the time in which one runs by
    their own times; exposed communication is the collectives'; idle time of launches is the host's.
    """
    total_ns = sum(rank_report["time_ns"] for rank_report in per_rank)
    if not (machine.spec.devices or machine.spec.name in published_errors()) or not total_ns:
        return [], {}
    kernels: Counter[tuple[str, str]] = Counter()
    for template, time_ps in times_ps:
        if template.kind == "kernel":
            kernels[template.family, kind_of(template)] += time_ps
    scale = sum(rank_report["compute_ns"] for rank_report in per_rank) / (kernels.total() or 1)
    shares: defaultdict[str, float] = defaultdict(float)
    kinds: defaultdict[str, float] = defaultdict(float)
    for (family, kind), time_ps in kernels.items():
        shares[family] += time_ps * scale
        kinds[kind] += time_ps * scale
    exposed_ns = sum(rank_report["comm_exposed_ns"] for rank_report in per_rank)
    host_ns = idle_parts(log).of_host_ps / 1000
    for values in (shares, kinds):
        values[_COLLECTIVES] += exposed_ns
        values[HOST] += host_ns
    family_reports: list[FamilyReport] = []
    for family, time_ns in sorted(shares.items(), key=lambda pair: (-pair[1], pair[0])):
        if time_ns < _LEAST_SHARE * total_ns or not family:
            continue
        share = round(time_ns / total_ns, 6)
        family_reports.append({**published_error(machine.spec.name, family), "share": share})
    return family_reports, {kind: ns for kind, ns in kinds.items() if ns >= _LEAST_SHARE * total_ns}


_OTHERWISE = {
    "elsewhere_percent": "on other machines only: ",
    "programs_percent": "in whole programs only: ",
}


def accuracy_line(families: list[FamilyReport]) -> str:
    """Return the families in one line, those of which nothing was measured at its end.

    >>> accuracy_line([{"family": "gemm", "share": 0.62, "error_percent": 4.8, "rows": 9}])
    'published errors of what the time is of: gemm 4.8 % (62 % of the time)'
    """
    if not families:
        return ""
    parts: dict[str, list[str]] = {head: [] for head in ("", *_OTHERWISE.values(), "none of ")}
    for family in families:
        name, error, share = family["family"], family["error_percent"], _share(family)
        if error is not None:
            parts[""].append(f"{name} {error:.1f} % ({share} of the time)")
            continue
        for key, head in _OTHERWISE.items():
            if key in family:
                parts[head].append(f"{name} {family[key]:.1f} % ({share})")  # type: ignore[literal-required]
        if family.keys().isdisjoint(_OTHERWISE):
            parts["none of "].append(f"{name} ({share})")
    said = "; ".join(head + ", ".join(part) for head, part in parts.items() if part)
    return f"published errors of what the time is of: {said}"


def range_line(time_range: TimeRange) -> str:
    """Return the range in one line, with what it is of.

    >>> range_line({"low_ns": 900.0, "high_ns": 1400.0, "kinds": [
    ...     {"kind": "norms", "share": 1.0, "low": 0.9, "high": 1.4, "rows": 12}]})
    'between 900 ns and 1.40 us with 80 % confidence: norms -10 to +40 % (100 % of the time)'
    """
    kinds = ", ".join(
        f"{kind['kind']} {kind['low'] * 100 - 100:+.0f} to {kind['high'] * 100 - 100:+.0f} % "
        f"({kind['share'] * 100:.0f} %{' of the time' if not index else ''}"
        f"{'' if kind['rows'] else '; assumed'})"
        for index, kind in enumerate(time_range["kinds"])
    )
    low, high = format_ns(time_range["low_ns"]), format_ns(time_range["high_ns"])
    return f"between {low} and {high} with 80 % confidence: {kinds}"


class Pairs(TypedDict):
    """Pairs of measured variants of one thing, and how they were ordered by modeled times."""

    pairs: int
    within: float
    """Four of five measured ratios are within this factor of the modeled one."""
    right: list[tuple[float | None, int, float]]
    """Pairs by how far apart they are modeled, as a factor (None: any further): how many, and the
    share that was ordered right."""


def pair_line(
    variants: str, first: float, second: float, known: Mapping[str, Pairs] | None = None
) -> str:
    """Return how sure the order of two modeled times is; empty where they are far enough apart.

    ``variants`` are ``kernels`` (configurations of one), ``runs`` or ``plans``.

    >>> known = {"plans": Pairs(pairs=90, within=1.2, right=[(1.05, 30, 0.6), (None, 60, 0.9)])}
    >>> pair_line("plans", 1.0, 1.02, known)
    'closer than errors of plans differ (20 %): of 30 pairs as close, 60 % were ordered right'
    >>> pair_line("plans", 1.0, 1.5, known)
    ''
    """
    pairs = (_published().get("pairs", {}) if known is None else known).get(variants)
    if pairs is None or not min(first, second) > 0:
        return ""
    apart = max(first, second) / min(first, second)
    if apart >= pairs["within"]:
        return ""
    fitting = (triple for triple in pairs["right"] if triple[0] is None or apart < triple[0])
    _, count, right = next(fitting, pairs["right"][-1])
    return (
        f"closer than errors of {variants} differ ({pairs['within'] * 100 - 100:.0f} %): of "
        f"{count} pairs as close, {right * 100:.0f} % were ordered right"
    )


def _share(family: FamilyReport) -> str:
    return f"{family['share'] * 100:.0f} %"
