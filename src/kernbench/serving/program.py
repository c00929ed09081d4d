"""Serves loads by an engine, one after another: the program of ``kernbench serve-bench``.

What comes of it is a part of the run's report, ``serving``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.cuda import nvtx

from kernbench.errors import UsageError
from kernbench.serving import (
    ServeSettings,
    ServingEngine,
    ServingLoad,
    Taken,
    TokenLengths,
    drive,
    engine_of,
    figures,
    parse_settings,
)
from kernbench.serving.figures import row_of
from kernbench.torch_bridge import add_to_report, unseen

NEAR = 0.05
"""How near the bounds of the rate that was looked for come to each other, in proportion."""
_MOST_DOUBLINGS = 20


def main(arguments: list[str]) -> None:
    """Serve, and add what came of it to the run's report."""
    settings = parse_settings(arguments)
    engine = engine_of(settings.engine, settings.of_engine)
    if settings.warm_up:
        longest = min(settings.inputs.most, max(1, engine.longest - 2))
        lengths = TokenLengths(longest, longest)
        load = ServingLoad.closed(
            settings.warm_up, settings.warm_up, lengths, TokenLengths(2, 2), -1
        )
        drive(engine, load, settings.seed + 1, unseen)
    run = _Loads(settings, engine, _agreement())
    if settings.finds_rate:
        rate = _find_rate(run, settings)
    else:
        rate = None
        for load in settings.loads:
            run.serve(load)
    serving: dict[str, Any] = {
        "engine": engine.name,
        "model": settings.of_engine.model,
        "devices": settings.of_engine.tp,
        "slo": {objective.measure: objective.bound_s for objective in settings.objectives},
        "loads": run.served,
    }
    if rate is not None:
        serving["rate_found"] = rate
    if int(os.environ.get("RANK", "0")) == 0:
        add_to_report("serving", serving)


def _agreement() -> Callable[[int], int]:
    """Return what tells all ranks the number of the first one, whose clock decides."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return lambda number: number
    group = dist.new_group(backend="gloo")

    def agreed(number: int) -> int:
        told = torch.tensor([number])
        dist.broadcast(told, src=0, group=group)
        return int(told)

    return agreed


class _Loads:
    """Loads that an engine has served."""

    def __init__(
        self, settings: ServeSettings, engine: ServingEngine, agreed: Callable[[int], int]
    ) -> None:
        self._settings, self._engine, self.agreed = settings, engine, agreed
        self.served: list[dict[str, Any]] = []

    def serve(self, load: ServingLoad) -> dict[str, Any]:
        """Serve a load, and return what came of it."""
        self._engine.forget()
        name = f"load {len(self.served)}: {load.name}"
        with nvtx.range(name):
            # In a closed loop ranks do the same without a word.
            agreed = {} if load.concurrency else {"agreed": self.agreed}
            taken = drive(self._engine, load, self._settings.seed, unseen, **agreed)
        described: dict[str, Any] = unseen(self._described)(load, taken, name)
        self.served.append(described)
        return described

    def _described(self, load: ServingLoad, taken: Taken, name: str) -> dict[str, Any]:
        settings = self._settings
        return {
            "load": load.name,
            "range": name,
            "figures": figures(taken, settings.objectives, settings.of_engine.tp),
            "requests": [row_of(row) for row in taken.rows],
            "steps": [
                {
                    "begin_s": round(step.begin_s, 12),
                    "end_s": round(step.end_s, 12),
                    "first_tokens": step.first_tokens,
                    "tokens": step.tokens,
                    "running": step.running,
                    "waiting": step.waiting,
                    "kv_share": round(step.kv_share, 6),
                }
                for step in taken.steps
            ],
        }


def _find_rate(run: _Loads, settings: ServeSettings) -> dict[str, Any]:
    """Return the largest rate at which enough requests keep to the objectives, by bisection.

    Raises:
        UsageError: No rate that was tried is right.
    """

    def is_kept(rate: float) -> bool:
        kept: float = run.serve(settings.at_rate(rate))["figures"]["kept"]
        return bool(run.agreed(kept >= settings.attained))

    rate = settings.loads[0].rate
    is_low = is_kept(rate)
    low, high = (rate, 0.0) if is_low else (0.0, rate)
    for _ in range(_MOST_DOUBLINGS):
        if low and high:
            break
        rate = rate * 2 if is_low else rate / 2
        low, high = (rate, high) if is_kept(rate) else (low, rate)
    if not low:
        raise UsageError(
            f"--find-rate: at {high:g} requests a second fewer than {settings.attained:.0%} keep "
            "to --slo, as at each larger rate that was tried: one request alone may not keep to it"
        )
    if not high:
        return {"rate": low, "above": None}
    while high / low > 1 + NEAR:
        rate = (low * high) ** 0.5
        low, high = (rate, high) if is_kept(rate) else (low, rate)
    return {"rate": low, "above": high}


if __name__ == "__main__":
    main(sys.argv[1:])
