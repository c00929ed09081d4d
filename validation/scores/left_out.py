"""The first tables of a page, of sources that no constant was fitted to, and the last, of others.

Beside the errors of the first is what a user would take instead on the same rows. Ranks of variants
follow, and how many measured times are in the ranges that reports state.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kernbench.accuracy.rows import Category, Machines
from kernbench.accuracy.score import Errors, Scored, errors_of, measure
from kernbench.accuracy.table import percent_of
from kernbench.errors import UnknownNameError
from validation.predictors.families.chosen import family_of
from validation.scores.baselines import roofline
from validation.scores.choices import ranks_of
from validation.scores.estimates import estimated_us
from validation.scores.fits import numbers_for
from validation.scores.ranges import coverage_of, observations

Table = tuple[str, list[list[str]]]
_SHORT_US = {"kernelbench": 200.0, "tritonbench": 20.0, "geak": 20.0}
"""Below so many microseconds rows of a source are its host's, or on its clock's grid."""
_HEAD = ["source", "device", "rows of", "rows", "unanswered", "median", "MAPE", "bias", "Spearman"]


def left_out_tables(
    scored: Sequence[Scored], machines: Machines, programs: Path | None = None
) -> list[Table]:
    """Return the tables of what had no part in fits, the first of a page.

    PyTorch's estimates, which take longer than all else, are made where the folder of programs is
    given.
    """
    rows = [each for each in scored if not _fitted(each, machines)]
    tables: list[Table] = []
    if rows:
        lines = [[*_HEAD, "roofline", "RuntimeEstimator"]]
        for key, group in _grouped(rows).items():
            estimated = None if programs is None else _estimated(group, machines, programs)
            others = [_median_and_mape(each) for each in (roofline(group, machines), estimated)]
            lines.append([*key, *_errors(measure(group)), *others])
        tables.append(("sources that no constant was fitted to", lines))
    ranks = ranks_of(scored)
    if ranks:
        lines = [["variants of", "groups", "variants", "Spearman", "pairs right, %", "regret, %"]]
        lines += [
            [
                each.sort, str(each.groups), str(each.variants), f"{each.spearman:.2f}",
                f"{each.right:.0f}", f"{each.regret:.1f}",
            ]
            for each in ranks
        ]  # fmt: skip
        tables.append(("ranks of variants", lines))
    tables += _coverage(scored, machines)
    return tables


def seen_table(scored: Sequence[Scored], machines: Machines) -> list[Table]:
    """Return the table of sources that constants were fitted to, with how many numbers say so."""
    rows = [each for each in scored if _fitted(each, machines)]
    if not rows:
        return []
    lines = [[*_HEAD, "numbers fitted to it"]]
    lines += [
        [*key, *_errors(measure(group)), str(_fitted(group[0], machines))]
        for key, group in _grouped(rows).items()
    ]
    return [("sources that fits have seen", lines)]


def _fitted(scored: Scored, machines: Machines) -> int:
    try:
        machine = machines.machine_of(scored.row.device)
    except UnknownNameError:  # no row of it has an answer
        return 0
    return numbers_for(scored.row.source, machine)


def _grouped(rows: Sequence[Scored]) -> dict[tuple[str, str, str], list[Scored]]:
    found: dict[tuple[str, str, str], list[Scored]] = {}
    for each in rows:
        row = each.row
        of = family_of(row).value if row.category is Category.PROGRAMS else row.category.value
        short_us = _SHORT_US.get(row.source)
        if short_us is not None:
            of += f"{', below' if row.time_us < short_us else ' from'} {short_us:g} us"
        found.setdefault((row.source, row.device, of), []).append(each)
    return dict(sorted(found.items()))


def _errors(found: Errors) -> list[str]:
    signed = "-" if found.bias is None else f"{found.bias:+.1f}"
    spearman = "-" if found.spearman is None else f"{found.spearman:.2f}"
    percent = [percent_of(each) for each in (found.median, found.mape)]
    return [str(found.rows), str(found.unanswered), *percent, signed, spearman]


def _estimated(rows: Sequence[Scored], machines: Machines, programs: Path) -> Errors | None:
    """Return the errors of PyTorch's estimator on the rows that have an answer."""
    found = [
        (estimated, each.row.time_us)
        for each in rows
        if each.answer.time_us is not None
        and (estimated := estimated_us(each.row, machines.machine_of(each.row.device), programs))
    ]
    if not found:
        return None
    estimates, measured = np.array(found).T
    return errors_of(estimates, measured, len(rows) - len(found))


def _median_and_mape(found: Errors | None) -> str:
    return "" if found is None else "/".join(map(percent_of, (found.median, found.mape)))


def _coverage(scored: Sequence[Scored], machines: Machines) -> list[Table]:
    """Return how many measured times are in the ranges that had no part of their rows."""
    found = coverage_of(observations(scored, machines))
    if not found:
        return []
    lines = [["time is mostly of", "machine", "rows", "inside, %", "upper over lower end"]]
    lines += [
        [
            each.kind, each.machine, str(each.rows), f"{100 * each.inside / each.rows:.0f}",
            f"{each.width:.2f}",
        ]
        for each in found
    ]  # fmt: skip
    rows, inside = (sum(getattr(each, name) for each in found) for name in ("rows", "inside"))
    lines.append(["all", "", str(rows), f"{100 * inside / rows:.0f}", ""])
    return [("measured times inside the range of 80 %", lines)]
