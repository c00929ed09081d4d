"""Figures of a load: percentiles, goodput, rates, the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernbench.errors import UsageError
from kernbench.serving.recording import RequestRow, Taken

PERCENTILES = (50, 90, 99)
MEASURES = ("ttft", "tpot", "e2e")
"""What an objective may bound, for each request."""
_UNITS = {"ms": 1e-3, "us": 1e-6, "s": 1.0}
_DIGITS = 12
"""Of seconds: picoseconds."""


@dataclass(frozen=True, slots=True)
class Objective:
    """A bound on a measure of each request."""

    measure: str
    bound_s: float

    def holds_for(self, row: RequestRow) -> bool:
        """Return whether a request keeps to it; one of a single token has no time of a token."""
        value: float | None = getattr(row, f"{self.measure}_s")
        return value is None or value <= self.bound_s


def objectives_of(text: str) -> tuple[Objective, ...]:
    """Return what ``ttft=200ms,tpot=50ms`` says; nothing for an empty text.

    Raises:
        UsageError: It says no such thing, or has a number without a unit.

    >>> objectives_of("ttft=0.2s,tpot=50ms")
    (Objective(measure='ttft', bound_s=0.2), Objective(measure='tpot', bound_s=0.05))
    """
    objectives: dict[str, Objective] = {}
    for part in filter(None, text.split(",")):
        name, _, bound = part.strip().partition("=")
        unit = next((unit for unit in _UNITS if bound.endswith(unit)), "")
        try:
            bound_s = float(bound.removesuffix(unit)) * _UNITS[unit]
        except (ValueError, KeyError):
            bound_s = 0.0
        if name not in MEASURES or not 0 < bound_s < float("inf") or name in objectives:
            raise UsageError(
                f"--slo must be bounds such as ttft=200ms,tpot=50ms (of {', '.join(MEASURES)}, in "
                f"{', '.join(_UNITS)}), each once, but got {part!r}"
            )
        objectives[name] = Objective(name, bound_s)
    return tuple(objectives.values())


def figures(taken: Taken, objectives: Sequence[Objective], devices: int) -> dict[str, Any]:
    """Return the figures of a load, times in seconds.

    Args:
        taken: Its requests and steps.
        objectives: What requests are to keep to, for goodput.
        devices: How many serve.
    """
    rows, steps = taken.rows, taken.steps
    end_s = max(row.token_times_s[-1] for row in rows)
    took_s = end_s - min(row.arrival_s for row in rows)
    number = sum(row.tokens for row in rows)
    asked = sum(row.request.input_tokens for row in rows)
    kept = [row for row in rows if all(objective.holds_for(row) for objective in objectives)]
    result: dict[str, Any] = {
        "requests": len(rows),
        "time_s": _rounded(took_s),
        "input_tokens": asked,
        "output_tokens": number,
        "cached_tokens": sum(row.cached_tokens for row in rows),
        "preemptions": sum(row.preemptions for row in rows),
        "requests_per_s": _rounded(len(rows) / took_s),
        "output_tokens_per_s": _rounded(number / took_s),
        "output_tokens_per_s_per_device": _rounded(number / took_s / devices),
        "tokens_per_s_per_device": _rounded((number + asked) / took_s / devices),
        "ttft_s": _spread([row.ttft_s for row in rows]),
        "queue_s": _spread([row.queue_s for row in rows]),
        "prefill_s": _spread([row.prefill_s for row in rows]),
        "tpot_s": _spread([row.tpot_s for row in rows]),
        "itl_s": _spread([gap for row in rows for gap in row.gaps_s]),
        "e2e_s": _spread([row.e2e_s for row in rows]),
        "steps": len(steps),
        "kv_share_peak": _rounded(max(step.kv_share for step in steps)),
        "running_peak": max(step.running for step in steps),
        "waiting_peak": max(step.waiting for step in steps),
    }
    if objectives:
        result["kept"] = len(kept) / len(rows)
        result["goodput_per_s"] = _rounded(len(kept) / took_s)
    return result


def _spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Return mean and percentiles of what is known; None where nothing is."""
    known = [number for number in values if number is not None]
    if not known:
        return None
    spread = {"mean": _rounded(float(np.mean(known)))}
    for percent in PERCENTILES:
        spread[f"p{percent}"] = _rounded(float(np.percentile(known, percent)))
    return spread


def _rounded(value: float) -> float:
    return round(value, _DIGITS)


def row_of(row: RequestRow) -> dict[str, Any]:
    """Return a request as a row of a table, times in seconds."""
    times = {
        name: getattr(row, f"{name}_s")
        for name in ("arrival", "queue", "prefill", "ttft", "decode", "tpot", "e2e")
    }
    return {
        "request": row.request.number,
        **{
            f"{name}_s": None if value is None else _rounded(value) for name, value in times.items()
        },
        "input_tokens": row.request.input_tokens,
        "output_tokens": row.tokens,
        "cached_tokens": row.cached_tokens,
        "preemptions": row.preemptions,
    }
