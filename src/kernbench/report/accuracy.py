"""How far off a run's time is likely to be: the published errors of what its time is of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, NotRequired, TypedDict

from kernbench.report.idle import idle_parts

if TYPE_CHECKING:
    from kernbench.hardware import Machine
    from kernbench.op_log import OpLog, Template
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


@cache
def published_errors() -> Mapping[str, Mapping[str, tuple[int, float]]]:
    """Return (rows, error in percent) by machine and family, as ``validate --publish`` wrote."""
    path = resources.files("kernbench.report") / "published_errors.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    return {
        machine: {family: (rows, error) for family, (rows, error) in families.items()}
        for machine, families in found["errors"].items()
    }


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
    found: FamilyAccuracy = {"family": family, "error_percent": error, "rows": rows}
    if error is None:
        others = [each[family] for each in published_errors().values() if family in each]
        num_rows = sum(rows for rows, _ in others)
        if num_rows:
            mean = sum(rows * percent for rows, percent in others) / num_rows
            found |= {"elsewhere_percent": round(mean, 1), "elsewhere_rows": num_rows}
        elif _PROGRAMS in of_machine:
            rows, percent = of_machine[_PROGRAMS]
            found |= {"programs_percent": percent, "programs_rows": rows}
    return found


def accuracy_of(
    log: OpLog,
    machine: Machine,
    per_rank: list[RankReport],
    times_ps: Iterable[tuple[Template, int]],
) -> list[FamilyReport]:
    """Return the families that the ranks' time is of, the longest first.

    ``times_ps`` has every template with the time of all its launches.
    Empty for a machine that models no device. Kernels share the time in which one runs by
    their own times; exposed communication is the collectives'; idle time of launches is the host's.
    """
    total_ns = sum(each["time_ns"] for each in per_rank)
    if not (machine.spec.devices or machine.spec.name in published_errors()) or not total_ns:
        return []
    kernels: dict[str, int] = {}
    for template, time_ps in times_ps:
        if template.kind == "kernel":
            kernels[template.family] = kernels.get(template.family, 0) + time_ps
    kernels_ps = sum(kernels.values()) or 1
    compute_ns = sum(each["compute_ns"] for each in per_rank)
    shares = {name: time / kernels_ps * compute_ns for name, time in kernels.items()}
    exposed_ns = sum(each["comm_exposed_ns"] for each in per_rank)
    shares[_COLLECTIVES] = shares.get(_COLLECTIVES, 0.0) + exposed_ns
    shares[HOST] = idle_parts(log).of_host_ps / 1000
    found: list[FamilyReport] = []
    for family, time_ns in sorted(shares.items(), key=lambda each: (-each[1], each[0])):
        if time_ns < _LEAST_SHARE * total_ns or not family:
            continue
        share = round(time_ns / total_ns, 6)
        found.append({**published_error(machine.spec.name, family), "share": share})
    return found


def accuracy_line(families: list[FamilyReport]) -> str:
    """Return the families in one line, those of which nothing was measured at its end.

    >>> accuracy_line([{"family": "gemm", "share": 0.62, "error_percent": 4.8, "rows": 9}])
    'published errors of what the time is of: gemm 4.8 % (62 % of the time)'
    """
    if not families:
        return ""
    known = [
        f"{each['family']} {each['error_percent']:.1f} % ({_share(each)} of the time)"
        for each in families
        if each["error_percent"] is not None
    ]
    unknown = [each for each in families if each["error_percent"] is None]
    elsewhere = [
        f"{each['family']} {each['elsewhere_percent']:.1f} % ({_share(each)})"
        for each in unknown
        if "elsewhere_percent" in each
    ]
    in_programs = [
        f"{each['family']} {each['programs_percent']:.1f} % ({_share(each)})"
        for each in unknown
        if "programs_percent" in each
    ]
    nowhere = [
        f"{each['family']} ({_share(each)})"
        for each in unknown
        if "elsewhere_percent" not in each and "programs_percent" not in each
    ]
    parts = [
        ", ".join(known),
        f"on other machines only: {', '.join(elsewhere)}" if elsewhere else "",
        f"in whole programs only: {', '.join(in_programs)}" if in_programs else "",
        f"none of {', '.join(nowhere)}" if nowhere else "",
    ]
    return f"published errors of what the time is of: {'; '.join(filter(None, parts))}"


def _share(family: FamilyReport) -> str:
    return f"{family['share'] * 100:.0f} %"
