"""Searches: points that Optuna proposes, run and kept as those of a sweep (ADR-0150)."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kernbench.cli.sweeps.engines import PointEngine
from kernbench.cli.sweeps.points import SweptProgram
from kernbench.cli.sweeps.running import Limits, Progress, run_points
from kernbench.cli.sweeps.store import ResultFolder
from kernbench.cli.sweeps.table import say_what_is_long
from kernbench.errors import UnknownNameError, UsageError, nearest
from kernbench.hardware import load_machine
from kernbench.report import cost_usd

if TYPE_CHECKING:
    import optuna

GOALS = {
    "time": "time_ns",
    "step": "step_ns",
    "memory": "device_memory_bytes",
    "cost": "cost_usd",
    "energy": "energy_j",
}
"""What may be minimized, and the column that says it."""
_JOURNAL = "search.journal"


@dataclass(frozen=True, kw_only=True)
class SearchAxis:
    """The values that a parameter may take."""

    name: str
    values: tuple[str, ...] = ()
    low: float = 0
    high: float = 0
    step: float | None = None
    is_whole: bool = True
    is_log: bool = False

    @property
    def all(self) -> list[Any] | None:
        """All values, as Optuna has them; None where they cannot be listed."""
        if self.values:
            return list(dict.fromkeys(self.values))
        if not self.is_whole:
            return None
        return list(range(int(self.low), int(self.high) + 1, int(self.step or 1)))

    def suggested(self, trial: optuna.Trial) -> str:
        """Return the value that a trial tries."""
        if self.values:
            return str(trial.suggest_categorical(self.name, self.values))
        if self.is_whole:
            step = int(self.step or 1)
            low, high = int(self.low), int(self.high)
            return str(trial.suggest_int(self.name, low, high, step=step, log=self.is_log))
        suggest_float = trial.suggest_float(
            self.name, self.low, self.high, step=self.step, log=self.is_log
        )
        return repr(suggest_float)


def parse_space(
    texts: Iterable[str], split: Callable[[str], Iterable[str]], option: str = "--space"
) -> list[SearchAxis]:
    """Return the axes of ``NAME=A,B,C``, ``NAME=LOW..HIGH``, ``...:STEP`` and ``...:log`` texts.

    Raises:
        UsageError: A text is otherwise, a range is empty, or a name comes twice.

    >>> parse_space(["m=16..64:16"], str.split)[0].step
    16.0
    """
    axes: dict[str, SearchAxis] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip()
        name = name if "." in name else name.replace("-", "_")
        if not equals or not name or not values.strip():
            raise UsageError(
                f"{option} must be NAME=A,B,C or NAME=LOW..HIGH[:STEP|:log], but got {text!r}"
            )
        if name in axes:
            raise UsageError(f"the space has {name} twice")
        is_range = ".." in values
        axes[name] = (
            _range(name, values) if is_range else SearchAxis(name=name, values=tuple(split(values)))
        )
    if not axes:
        raise UsageError("the space is empty; give axes, as in --space block_m=32,64,128")
    return list(axes.values())


def _range(name: str, text: str) -> SearchAxis:
    bounds, _, how = text.partition(":")
    low, _, high = bounds.partition("..")
    try:
        first, last = float(low), float(high)
        step = float(how) if how and how != "log" else None
    except ValueError:
        raise UsageError(
            f"{name}: a range must be LOW..HIGH[:STEP|:log], but got {text!r}"
        ) from None
    if first > last or (step is not None and step <= 0) or (how == "log" and first <= 0):
        raise UsageError(f"{name}: the range {text} has no values")
    is_whole = not any("." in name or "e" in name for name in (low, high, how.replace("log", "")))
    return SearchAxis(
        name=name, low=first, high=last, step=step, is_whole=is_whole, is_log=how == "log"
    )


@dataclass(frozen=True, kw_only=True)
class Goals:
    """What is minimized."""

    names: tuple[str, ...]
    prices: Mapping[str, float]
    """The price of an hour of one device, by machine, in place of the machine's own."""

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in GOALS:
                raise UnknownNameError(f"--minimize {name}: {nearest(name, GOALS)}")
        if len(set(self.names)) < len(self.names):
            raise UsageError("--minimize names a goal twice")

    def check(self, machines: Iterable[str]) -> None:
        """Refuse machines that do not say what a goal needs.

        Raises:
            UsageError: One has no price, or says nothing of energy.
        """
        for name in machines:
            spec = load_machine(name).spec
            priced = name in self.prices or spec.usd_per_device_hour is not None
            if "cost" in self.names and not priced:
                raise UsageError(
                    f"the cost of {name} is not known; say it per device and hour: "
                    f"--price {name}=2.50"
                )
            if "energy" in self.names and spec.sip.power is None:
                raise UsageError(
                    f"machine {name} says nothing of energy; add sip.power to its file"
                )

    def values(self, row: Mapping[str, Any]) -> list[float]:
        """Return what a point that is done has reached.

        Raises:
            UsageError: The point was run by a kernbench that did not find out.
        """
        figures = dict(row["figures"])
        price = self.prices.get(row["machine"])
        if price is not None:
            figures["cost_usd"] = cost_usd(price, row["ranks"], figures["time_ns"])
        numbers = []
        for name in self.names:
            value = figures.get(GOALS[name])
            if value is None:
                why = f"a point of an older search has no {name}; give another folder with --output"
                if name == "step":
                    why = "the program names no steps: with optimizer.step, or PyTorch's profiler"
                raise UsageError(why)
            numbers.append(float(value))
        return numbers


class _JournalLock:
    """A lock of Optuna's journal that ends with its process; Optuna's own outlive a killed one."""

    def __init__(self, journal: Path) -> None:
        self._path = journal.with_suffix(".lock")
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        """Wait for the lock and take it."""
        self._file = self._path.open("wb")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Search:
    """A study of Optuna beside the results of its points; both go on where they were."""

    def __init__(
        self, folder: Path, axes: Sequence[SearchAxis], goals: Goals, seed: int, trials: int
    ) -> None:
        """Open the study in a folder of results.

        Raises:
            UsageError: Optuna is not installed.
        """
        try:
            import optuna
            from optuna.storages import JournalStorage
            from optuna.storages.journal import JournalFileBackend
        except ImportError:
            raise UsageError('a search needs Optuna: pip install "kernbench[search]"') from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._axes, self._goals = axes, goals
        values = {axis.name: axis.all for axis in axes}
        grid = {name: value for name, value in values.items() if value is not None}
        self.size = prod(map(len, grid.values())) if len(grid) == len(axes) else None
        """How many points the space has; None where they cannot be counted."""
        journal = folder / _JOURNAL
        name = f"{','.join(goals.names)} over {'; '.join(map(repr, axes))}"
        self.study = optuna.create_study(
            storage=JournalStorage(
                JournalFileBackend(str(journal), lock_obj=_JournalLock(journal))
            ),
            sampler=optuna.samplers.TPESampler(seed=seed),
            study_name=name,
            directions=["minimize"] * len(goals.names),
            load_if_exists=True,
        )
        self._states = optuna.trial.TrialState
        if self.size is not None and self.size <= trials:
            # A space that is tried as a whole needs no proposals, which may come twice.
            for point in product(*grid.values()):
                self.study.enqueue_trial(dict(zip(grid, point, strict=True)), skip_if_exists=True)
        # Those that a killed search had begun are proposed again.
        for trial in self.study.get_trials(states=(self._states.RUNNING,)):
            self.study.tell(trial.number, state=self._states.FAIL)
            self.study.enqueue_trial(trial.params)

    @property
    def told(self) -> int:
        """How many trials have ended."""
        ended = (self._states.COMPLETE, self._states.PRUNED)
        return len(self.study.get_trials(deepcopy=False, states=ended))

    def run(
        self,
        trials: int,
        bench: SweptProgram,
        fixed: Mapping[str, str],
        store: ResultFolder,
        engine: PointEngine,
        limits: Limits,
        progress: Progress,
    ) -> None:
        """Run trials until there are so many, as many at a time as the engine has slots.

        A point that fails is a trial that is told to be none.
        """
        told = self.told
        left = trials - told
        while left > 0:
            asked = [self.study.ask() for _ in range(min(left, max(engine.slots(), 1)))]
            points = [
                bench.point({**fixed, **{axis.name: axis.suggested(trial) for axis in self._axes}})
                for trial in asked
            ]
            if left == trials - told:
                say_what_is_long(points, bench.settings)
            new = {point.key: point for point in points if store.row(point.key) is None}
            progress.kept += len(points) - len(new)
            run_points(new.values(), frozenset(), store, engine, limits, progress)
            for trial, point in zip(asked, points, strict=True):
                row = store.row(point.key)
                trial.set_user_attr("key", point.key)
                if row is not None and row["status"] == "done":
                    self.study.tell(trial, self._goals.values(row))
                else:
                    self.study.tell(trial, state=self._states.PRUNED)
            left -= len(asked)

    def best(self) -> list[tuple[dict[str, Any], list[float]]]:
        """Return the parameters and values of what nothing beats in every goal, by the first."""
        params = {tuple(trial.values): trial.params for trial in self.study.best_trials}
        return [(params[values], list(values)) for values in sorted(params)]

    def tried(self) -> list[tuple[dict[str, Any], list[float]]]:
        """Return the parameters and values of all trials that have some."""
        trials = self.study.get_trials(deepcopy=False, states=(self._states.COMPLETE,))
        return [(trial.params, trial.values) for trial in trials]
