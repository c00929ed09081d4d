"""Choices among variants of one kernel or program: how pairs are ordered, what a choice costs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log

import numpy as np

from kernbench.accuracy.rows import Category
from kernbench.accuracy.score import Scored, errors_of
from validation.scores.speedups import pairs_of
from validation.scores.sweeps import sweep_of

KERNELS, RUNS, PLANS, SOLUTIONS = "kernels", "runs", "plans", "solutions"
_APART = 1.05
"""Measured times closer than this are in no order."""
_BINS = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0)
_LEAST_VARIANTS = 5
_CONFIGURES = ("block", "num_", "type", "stage", "warp", "use_dot", "ctas")
"""What is in the names of parameters that configure a kernel, and do not say what it computes."""
Variants = list[tuple[float, float]]
"""Measured and modeled times of variants of one thing."""


def variants_of(scored: Sequence[Scored]) -> dict[str, dict[tuple[str, ...], Variants]]:
    """Return variants by sort (configurations of a kernel, runs, plans, solutions of one task).

    Those of a sort are by what they are variants of.
    """
    sorts = KERNELS, RUNS, PLANS, SOLUTIONS
    variants: dict[str, dict[tuple[str, ...], Variants]] = {sort: {} for sort in sorts}
    for item in scored:
        row, time_us = item.row, item.answer.time_us
        if time_us is None:
            continue
        if row.source == "geak":
            said = json.loads(row.fields["params"]).items()
            what = [f"{name}={value}" for name, value in said if not _configures(name)]
            key = (row.fields["branch"], row.fields["kernel"], *what)
            variants[KERNELS].setdefault(key, []).append((row.time_us, time_us))
        elif row.source == "kernelbench.com":
            key = (row.device, row.op, row.fields["label"])
            variants[SOLUTIONS].setdefault(key, []).append((row.time_us, time_us))
        elif row.category is Category.TP_SCALING:
            variants[PLANS].setdefault(sweep_of(row), []).append((row.time_us, time_us))
    for number, pair in enumerate(pairs_of(scored)):
        times = [
            (scored.row.time_us, scored.answer.time_us) for scored in (pair.eager, pair.compiled)
        ]
        variants[RUNS][str(number),] = [(a, b) for a, b in times if b is not None]
    return variants


def _configures(name: str) -> bool:
    return any(configure in name.lower() for configure in _CONFIGURES)


def pairs_by_distance(groups: Iterable[Variants]) -> dict[str, object] | None:
    """Return how many pairs are ordered right by how far apart they are modeled, for reports.

    ``within``: four of five measured ratios are within this factor of the modeled one.
    """
    pairs = [
        (log(first[0] / second[0]), log(first[1] / second[1]))
        for variants in groups
        for first, second in combinations(variants, 2)
    ]
    if not pairs:
        return None
    measured, modeled = np.array(pairs).T
    within = float(np.exp(np.quantile(np.abs(measured - modeled), 0.8)))
    counts = []
    for least, most in zip((1.0, *_BINS), (*_BINS, float("inf")), strict=True):
        apart = np.exp(np.abs(modeled))
        chosen = (apart >= least) & (apart < most) & (np.abs(measured) > log(_APART))
        if chosen.any():
            # Equal times are in the right order as often as not.
            right = (1 + np.sign(measured[chosen] * modeled[chosen])).mean() / 2
            counts.append([most if most < float("inf") else None, int(chosen.sum()),
                           round(float(right), 3)])  # fmt: skip
    return {"pairs": len(pairs), "within": round(within, 3), "right": counts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """How variants of a sort are ranked; shares in percent, ``regret`` of the chosen one."""

    sort: str
    groups: int
    variants: int
    spearman: float
    right: float
    regret: float


def ranks_of(scored: Sequence[Scored]) -> list[Ranks]:
    """Return the ranks of each sort of variants that has groups of five and more."""
    result = []
    for sort, groups in variants_of(scored).items():
        large = [group for group in groups.values() if len(group) >= _LEAST_VARIANTS]
        ranks, regrets, right = [], [], []
        for variants in large:
            measured, modeled = np.array(variants).T
            ranks.append(errors_of(modeled, measured).spearman or 0.0)
            regrets.append(measured[modeled.argmin()] / measured.min() - 1)
            right += [
                (1 + np.sign((first[0] - second[0]) * (first[1] - second[1]))) / 2
                for first, second in combinations(variants, 2)
                if abs(log(first[0] / second[0])) > log(_APART)
            ]
        if large:
            result.append(
                Ranks(
                    sort=sort,
                    groups=len(large),
                    variants=sum(map(len, large)),
                    spearman=float(np.mean(ranks)),
                    right=100 * float(np.mean(right)) if right else 0.0,
                    regret=100 * float(np.median(regrets)),
                )
            )
    return result
