"""What ``kernbench serve-bench`` and the program behind it are given."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from kernbench.errors import UsageError
from kernbench.serving.engine import EngineSettings, check_engine
from kernbench.serving.figures import Objective, objectives_of
from kernbench.serving.loads import ServingLoad, TokenLengths
from kernbench.serving.traces import read_trace

PROGRAM = Path(__file__).with_name("program.py")
"""The PyTorch program that serves, with the options below."""
DEFAULTS: dict[str, Any] = {
    "model": "llama-3-8b", "tp": "1", "quantization": "", "max_model_len": "0", "engine_arg": [],
    "rate": "", "burst": "1", "concurrency": "", "trace": "", "skip_holes": False,
    "input": "1024", "output": "128", "requests": "", "slo": "", "find_rate": False,
    "attained": "0.9", "seed": "0", "warm_up": "1",
}  # fmt: skip
"""The program's options, and what each is where it is left out."""
_MOST_REQUESTS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """An engine, the loads that come one after another, and what is asked of them."""

    engine: str
    of_engine: EngineSettings
    loads: tuple[ServingLoad, ...]
    objectives: tuple[Objective, ...]
    attained: float
    """The share of requests that must keep to the objectives, where a rate is looked for."""
    finds_rate: bool
    count: int
    inputs: TokenLengths
    outputs: TokenLengths
    burst: int
    seed: int
    warm_up: int
    """Requests before the first load, which nobody counts."""

    def at_rate(self, rate: float) -> ServingLoad:
        """Return the load of another rate."""
        return ServingLoad.poisson(
            rate, self.count, self.inputs, self.outputs, self.seed, self.burst
        )


class _SettingsParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse_settings(arguments: Sequence[str]) -> ServeSettings:
    """Return what the program's arguments ask for.

    Raises:
        UsageError: A value is impossible, or two contradict each other.
        UnknownNameError: There is no such engine.
    """
    parser = _SettingsParser(prog="serve-bench", allow_abbrev=False)
    parser.add_argument("engine")
    for name, default in DEFAULTS.items():
        action = {bool: "store_true", list: "append"}.get(type(default), "store")
        parser.add_argument(f"--{name.replace('_', '-')}", action=action, default=default)
    options = parser.parse_args(list(arguments))
    check_engine(options.engine)
    asked = [name for name in ("rate", "concurrency", "trace") if getattr(options, name)]
    if len(asked) > 1 or not (asked or options.find_rate):
        value = " and ".join(f"--{name}" for name in asked) or "none"
        raise UsageError(
            f"a load is one of --rate R, --concurrency C and --trace FILE, but got {value}"
        )
    objectives = objectives_of(options.slo)
    if options.find_rate and (not objectives or asked not in ([], ["rate"])):
        raise UsageError(
            "--find-rate needs --slo, such as --slo ttft=200ms,tpot=50ms, and begins at --rate"
        )
    inputs = TokenLengths.of(options.input, "--input")
    outputs = TokenLengths.of(options.output, "--output")
    count = _whole(options.requests or "32", "--requests", 1, _MOST_REQUESTS)
    seed, burst = _whole(options.seed, "--seed", 0), _whole(options.burst, "--burst", 1, count)
    if burst > 1 and not options.rate:
        raise UsageError("--burst is of arrivals at a --rate: add that, or leave --burst out")
    loads: list[ServingLoad] = []
    for text in filter(None, (options.rate or "").split(",")):
        rate = _number(text, "--rate", infinite=True)
        loads.append(ServingLoad.poisson(rate, count, inputs, outputs, seed, burst))
    for text in filter(None, (options.concurrency or "").split(",")):
        concurrency = _whole(text, "--concurrency", 1, _MOST_REQUESTS)
        loads.append(ServingLoad.closed(concurrency, count, inputs, outputs, seed))
    if options.trace:
        most = count if options.requests else None
        rows = read_trace(Path(options.trace), most, skips_holes=options.skip_holes)
        loads.append(ServingLoad.recorded(f"trace {Path(options.trace).name}", rows))
    if options.find_rate:
        if len(loads) > 1 or any(math.isinf(load.rate) for load in loads):
            raise UsageError("--find-rate begins at one finite --rate")
        loads = loads or [ServingLoad.poisson(1.0, count, inputs, outputs, seed, burst)]
    attained = _number(options.attained, "--attained")
    if attained > 1:
        raise UsageError(f"--attained must be a share up to 1, but got {options.attained}")
    return ServeSettings(
        engine=options.engine,
        of_engine=EngineSettings(
            model=options.model,
            tp=_whole(options.tp, "--tp", 1, 1024),
            quantization=options.quantization,
            max_model_len=_whole(options.max_model_len, "--max-model-len", 0),
            arguments=dict(map(_argument, options.engine_arg)),
        ),
        loads=tuple(loads),
        objectives=objectives,
        attained=attained,
        finds_rate=options.find_rate,
        count=count,
        inputs=inputs,
        outputs=outputs,
        burst=burst,
        seed=seed,
        warm_up=_whole(options.warm_up, "--warm-up", 0, _MOST_REQUESTS),
    )


def _whole(text: str, option: str, least: int, most: int = 10**9) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise UsageError(
            f"{option} must be a whole number from {least} to {most:,}, but got {text!r}"
        )
    return int(text)


def _number(text: str, option: str, *, infinite: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0 or (math.isinf(value) and not infinite):
        or_all = ", or inf: all at once" if infinite else ""
        raise UsageError(f"{option} must be a number above 0{or_all}, but got {text!r}")
    return value


def _argument(text: str) -> tuple[str, Any]:
    name, is_given, value = text.partition("=")
    if not is_given or not name.isidentifier():
        raise UsageError(f"--engine-arg must be NAME=VALUE, but got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
