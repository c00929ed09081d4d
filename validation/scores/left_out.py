"""The first tables of a page, of sources that no constant was fitted to, and the last, of others.

Beside the errors of the first is what a user would take instead on the same rows. Ranks of variants
follow, and how many measured times are in the ranges that reports state.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kernbench.accuracy.rows import Category, Machines
from kernbench.accuracy.score import Errors, Scored, errors_of, measure, percent_of
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
    rows = [item for item in scored if not _fitted(item, machines)]
    tables: list[Table] = []
    if rows:
        lines = [[*_HEAD, "roofline", "RuntimeEstimator"]]
        for key, group in _grouped(rows).items():
            estimated = None if programs is None else _estimated(group, machines, programs)
            others = [_median_and_mape(errors) for errors in (roofline(group, machines), estimated)]
            lines.append([*key, *_errors(measure(group)), *others])
        tables.append(("sources that no constant was fitted to", lines))
    ranks = ranks_of(scored)
    if ranks:
        lines = [["variants of", "groups", "variants", "Spearman", "pairs right, %", "regret, %"]]
        lines += [
            [
                rank.sort, str(rank.groups), str(rank.variants), f"{rank.spearman:.2f}",
                f"{rank.right:.0f}", f"{rank.regret:.1f}",
            ]
            for rank in ranks
        ]  # fmt: skip
        tables.append(("ranks of variants", lines))
    tables += _coverage(scored, machines)
    return tables


def seen_table(scored: Sequence[Scored], machines: Machines) -> list[Table]:
    """Return the table of sources that constants were fitted to, with how many numbers say so."""
    rows = [item for item in scored if _fitted(item, machines)]
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
    values: dict[tuple[str, str, str], list[Scored]] = {}
    for scored in rows:
        row = scored.row
        of = row.category.value
        if row.category is Category.PROGRAMS:
            of = family_of(row, scored.answer.why_not).value
        short_us = _SHORT_US.get(row.source)
        if short_us is not None:
            of += f"{', below' if row.time_us < short_us else ' from'} {short_us:g} us"
        values.setdefault((row.source, row.device, of), []).append(scored)
    return dict(sorted(values.items()))


def _errors(errors: Errors) -> list[str]:
    signed = "-" if errors.bias is None else f"{errors.bias:+.1f}"
    spearman = "-" if errors.spearman is None else f"{errors.spearman:.2f}"
    percent = [percent_of(number) for number in (errors.median, errors.mape)]
    return [str(errors.rows), str(errors.unanswered), *percent, signed, spearman]


def _estimated(rows: Sequence[Scored], machines: Machines, programs: Path) -> Errors | None:
    """Return the errors of PyTorch's estimator on the rows that have an answer."""
    pairs = [
        (estimated, row.row.time_us)
        for row in rows
        if row.answer.time_us is not None
        and (estimated := estimated_us(row.row, machines.machine_of(row.row.device), programs))
    ]
    if not pairs:
        return None
    estimates, measured = np.array(pairs).T
    return errors_of(estimates, measured, len(rows) - len(pairs))


def _median_and_mape(errors: Errors | None) -> str:
    return "" if errors is None else "/".join(map(percent_of, (errors.median, errors.mape)))


def _coverage(scored: Sequence[Scored], machines: Machines) -> list[Table]:
    """Return how many measured times are in the ranges that had no part of their rows."""
    coverage = coverage_of(observations(scored, machines))
    if not coverage:
        return []
    lines = [["time is mostly of", "machine", "rows", "inside, %", "upper over lower end"]]
    lines += [
        [
            item.kind, item.machine, str(item.rows), f"{100 * item.inside / item.rows:.0f}",
            f"{item.width:.2f}",
        ]
        for item in coverage
    ]  # fmt: skip
    rows, inside = (sum(getattr(item, name) for item in coverage) for name in ("rows", "inside"))
    lines.append(["all", "", str(rows), f"{100 * inside / rows:.0f}", ""])
    return [("measured times inside the range of 80 %", lines)]
