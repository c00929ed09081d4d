"""What a load needs of an engine, and how one is made: by name, or by a file of one's own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kernbench.errors import UnknownNameError, UsageError, nearest

ENGINES = {"vllm": "kernbench.serving.vllm_engine"}
"""Engines that have a name, and the module whose ``make_engine`` makes each."""
MAKER = "make_engine"


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """What an engine is made of."""

    model: str
    """A known model's name, a folder with a ``config.json``, or that file."""
    tp: int = 1
    """Over how many devices each layer is split."""
    quantization: str = ""
    max_model_len: int = 0
    """The most tokens of a request, in and out; 0: what the model takes."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the engine's own, by their names there."""


class Output(NamedTuple):
    """What a step did for a request."""

    number: int
    tokens: int
    """How many tokens it made."""
    is_last: bool
    begun_s: float | None = None
    """When the engine first scheduled it; None: the engine does not say."""
    cached_tokens: int = 0
    """Tokens of its prompt that were in the cache."""
    preemptions: int = 0
    """How often it lost its place, so far."""


class State(NamedTuple):
    """An engine after a step."""

    running: int
    waiting: int
    kv_share: float
    """The share of its cache of keys and values that is in use."""


class ServingEngine(Protocol):
    """An engine that serves step by step; times are those of ``time.monotonic``."""

    name: str
    """Its name and version."""
    longest: int
    """The most tokens of a request, in and out."""
    vocabulary: int

    def add(self, number: int, prompt: Sequence[int], output_tokens: int) -> None:
        """Take a request that is to make so many tokens, whatever they are."""

    def step(self) -> Iterable[Output]:
        """Do one step, and return what it made."""

    def is_idle(self) -> bool:
        """Return whether no request is left."""

    def state(self) -> State:
        """Return what it does and holds after the last step."""

    def forget(self) -> None:
        """Empty its cache of prompts, so that the next load begins as the first."""


def engine_of(name: str, settings: EngineSettings) -> ServingEngine:
    """Return an engine by its name, or made by ``make_engine(settings)`` of a Python file.

    Raises:
        UnknownNameError: There is no such engine.
        UsageError: The file has no such function, or the engine is not installed.
    """
    module = importlib.import_module(ENGINES[name]) if name in ENGINES else _module_of(name)
    engine: ServingEngine = getattr(module, MAKER)(settings)
    return engine


def check_engine(name: str) -> None:
    """Refuse a name that is neither an engine's nor a Python file's.

    Raises:
        UnknownNameError: It is neither.
        UsageError: The file is not there.
    """
    if name in ENGINES:
        return
    if not name.endswith(".py"):
        raise UnknownNameError(
            f"unknown engine {name!r} (or name a Python file with {MAKER}(settings)): "
            f"{nearest(name, ENGINES)}"
        )
    if not Path(name).is_file():
        raise UsageError(f"there is no file {name}, which was to make the engine")


def _module_of(name: str) -> Any:
    check_engine(name)
    path = Path(name)
    # A name of its own: the program's folder may have a package of the file's name.
    spec = spec_from_file_location(f"served_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if not callable(getattr(module, MAKER, None)):
        raise UsageError(f"{name} has no {MAKER}(settings), which was to make the engine")
    return module
