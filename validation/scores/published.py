"""What reports of runs say of errors: by machine and family, as ranges, of pairs of variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernbench.accuracy.rows import Machines
from kernbench.accuracy.score import Scored, measure
from validation.scores.choices import pairs_by_distance, variants_of
from validation.scores.ranges import family_of_row, observations, ranges_of

_LAUNCH_BOUND = 0.5
"""From this share of its time on, a program's error is the host's."""


def published(scored: Sequence[Scored], machines: Machines) -> dict[str, Any]:
    """Return the errors, ranges and pairs that reports read."""
    pairs = {
        sort: pairs_by_distance(groups.values()) for sort, groups in variants_of(scored).items()
    }
    return {
        "errors": errors_by_machine(scored, machines),
        "ranges": ranges_of(observations(scored, machines)),
        "pairs": {sort: pair for sort, pair in pairs.items() if pair is not None},
    }


def _families(scored: Scored) -> tuple[str, ...]:
    """Return the families whose error a row's is part of."""
    is_of_host = scored.answer.host_share >= _LAUNCH_BOUND
    return (family_of_row(scored.row, scored.answer.how), *(("host",) if is_of_host else ()))


def errors_by_machine(
    scored: Sequence[Scored], machines: Machines
) -> dict[str, dict[str, tuple[int, float]]]:
    """Return (answered rows, MAPE in percent) by machine and family, for reports of runs.

    A family is a category; products of 8 bits and fewer, quantisation, and attention that no
    program launches are families of their own. Programs whose devices wait for their hosts half of
    the time or more are the host's.
    """
    values: dict[str, dict[str, list[Scored]]] = {}
    for item in scored:
        if item.answer.time_us is not None:
            machine = machines.machine_of(item.row.device).spec.name
            by_category = values.setdefault(machine, {})
            for family in _families(item):
                by_category.setdefault(family, []).append(item)
    return {
        machine: {
            category: (errors.rows, round(errors.mape, 1))
            for category, rows in sorted(by_category.items())
            if (errors := measure(rows)).mape is not None
        }
        for machine, by_category in sorted(values.items())
    }
