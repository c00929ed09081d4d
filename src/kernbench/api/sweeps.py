"""A program at every point of a grid."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from kernbench.api.results import Printed, StrPath
from kernbench.cli.sweeps.engines import check_engine
from kernbench.cli.sweeps.points import Settings, swept
from kernbench.cli.sweeps.running import Limits, Progress, results_of
from kernbench.cli.sweeps.store import ResultFolder
from kernbench.cli.sweeps.study import Study, as_text
from kernbench.cli.sweeps.table import flat, show, tokens_of
from kernbench.errors import UsageError
from kernbench.notebooks import notebook_progress

Grid = Mapping[str, Iterable[object]]


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """One point of a sweep, and what came of it."""

    values: Mapping[str, str]
    """What varies, as typed on a command line."""
    machine: str
    ranks: int
    status: str
    """``done``, ``failed``, ``timeout``, ``memory`` or ``lost``."""
    error: str | None
    figures: Mapping[str, float]
    """By column: ``time_ns``, ``step_ns``, ``device_memory_bytes``, ``tokens_per_s`` ...; empty of
    a point that has failed."""

    @property
    def is_done(self) -> bool:
        return self.status == "done"

    @property
    def time_ns(self) -> float:
        """Simulated time of a steady step, of the whole run where there are no steps.

        Raises:
            UsageError: The point has failed.
        """
        if not self.is_done:
            raise UsageError(f"{dict(self.values)}: {self.status}: {self.error}")
        return self.figures.get("step_ns", self.figures["time_ns"])


@dataclass(frozen=True, repr=False)
class SweepResult(Printed):
    """The points of a sweep; its table has a row for each."""

    points: Sequence[SweepPoint]

    @property
    def best(self) -> SweepPoint:
        """The point that takes the least time.

        Raises:
            UsageError: All have failed.
        """
        done = [point for point in self.points if point.is_done]
        if not done:
            raise UsageError(f"all {len(self.points)} points have failed: {self.points[0].error}")
        return min(done, key=lambda sweep_point: sweep_point.time_ns)

    def rows(self) -> Sequence[Mapping[str, object]]:
        return [
            {
                "machine": point.machine,
                "ranks": point.ranks,
                **point.values,
                "status": point.status,
                "error": point.error,
                **point.figures,
            }
            for point in self.points
        ]

    def print_to(self, console: Console) -> None:
        show(self.rows(), self.points[0].values, console)

    def __repr__(self) -> str:
        done = sum(point.is_done for point in self.points)
        return f"SweepResult({len(self.points)} points, {done} done)"


def sweep(
    program: StrPath,
    grid: Grid,
    *,
    args: Sequence[str] = (),
    options: Grid | None = None,
    params: Mapping[str, object] | None = None,
    machine: StrPath | None = None,
    ranks: int | None = None,
    settings: Mapping[str, object] | None = None,
    data: bool = True,
    seed: int = 0,
    fold: bool = False,
    tokens: str | None = None,
    output: StrPath | None = None,
    workers: int | None = None,
    timeout_s: float | None = None,
    memory_mb: float | None = None,
) -> SweepResult:
    """Run a program at every point of a grid, as ``kernbench sweep`` does.

    Args:
        program: A bench or the name of one, a script, or a PyTorch program.
        grid: Values by axis: a parameter of a bench, an option of a program, ``machine``,
            ``ranks``, ``nnodes``, ``env.NAME``, or a key of the machine with dots.
        args: Arguments of a program at all points.
        options: Axes that are options of a program though its text does not show them.
        params: Parameters of a bench, or options of a program, that are the same at all points.
        machine: Of points whose grid does not say one.
        ranks: Likewise.
        settings: Keys of the machine that are changed at all points.
        data: Whether tensors hold numbers.
        seed: Of a bench's random numbers.
        fold: Whether one rank of a PyTorch program runs for all that do the same.
        tokens: How many tokens a step has: ``"batch*seq"``, of numbers, options and ``ranks``.
        output: A folder that keeps results: what is there is not run again. None: nothing is kept.
        workers: How many points run at a time; None: as many as there are cores.
        timeout_s: Wall time of a point.
        memory_mb: Memory of a point.

    Raises:
        UsageError: There are no points, or a value is impossible.
        UnknownNameError: There is no such axis.
    """
    forced = {name: list(map(as_text, values)) for name, values in (options or {}).items()}
    study = Study(
        program=os.fspath(program),
        settings=Settings(
            machine=None if machine is None else os.fspath(machine),
            ranks=ranks,
            data=data,
            seed=seed,
            changes={name: as_text(value) for name, value in (settings or {}).items()},
            args=args,
            forced=frozenset(forced),
            fold=fold,
        ),
        fixed={name: as_text(value) for name, value in (params or {}).items()},
        axes={**forced, **{name: list(map(as_text, values)) for name, values in grid.items()}},
    )
    check_engine("local", workers)
    target = swept(study.program, study.settings)
    points = study.points(target)
    counted = {point.key: tokens_of(tokens, point, target) for point in points}
    state = Progress(total=len(points))
    with ExitStack() as around:
        folder = output or around.enter_context(tempfile.TemporaryDirectory(prefix="kernbench-"))
        store = ResultFolder(Path(folder), target.path.name)
        around.enter_context(notebook_progress(state.describe, state.share))
        limits = Limits(timeout_s=timeout_s, memory_mb=memory_mb)
        kept = results_of(points, store, limits, workers, state)
    return SweepResult(
        [
            _point(point.values, flat(point, kept.get(point.key), counted[point.key]))
            for point in points
        ]
    )


_BESIDE = frozenset({"machine", "ranks", "status", "error", "key", "wall_s", "peak_mb"})


def _point(values: Mapping[str, str], row: Mapping[str, Any]) -> SweepPoint:
    names = row.keys() - _BESIDE - values.keys()
    return SweepPoint(
        values=values,
        machine=row["machine"],
        ranks=int(row["ranks"]),
        status="lost" if row["status"] == "pending" else row["status"],
        error=row["error"],
        figures={name: row[name] for name in sorted(names)},
    )
