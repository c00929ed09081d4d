"""Running the points of a sweep that have no result yet."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from kernbench.cli.sweeps.engines import Answer, PointEngine, engine
from kernbench.cli.sweeps.points import Point
from kernbench.cli.sweeps.store import Claims, ResultFolder
from kernbench.cli.sweeps.table import row_of
from kernbench.errors import KernbenchError
from kernbench.logs import logger

_LOG = logger("sweep")
RowOf = Callable[[Point, Answer, Mapping[str, Any]], dict[str, Any]]
_ATTEMPTS = 3
_LOOK_AGAIN_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a point may take."""

    timeout_s: float | None = None
    memory_mb: float | None = None

    def are_wider_than(self, row: Mapping[str, Any]) -> bool:
        """Return whether a point that was ended at its limit may have more now."""
        name = {"timeout": "timeout_s", "memory": "memory_mb"}.get(row["status"])
        if name is None:
            return False
        now, then = getattr(self, name), row.get(name)
        return now is None or (then is not None and now > then)


@dataclass
class Progress:
    """How far a sweep has come; plain values, which another thread may read."""

    total: int
    what: str = "points"
    kept: int = 0
    done: int = 0
    failed: int = 0
    lost: list[str] = field(default_factory=list)
    begun_s: float = field(default_factory=time.monotonic)

    def share(self) -> float:
        """Return which part of the points has a result."""
        return (self.kept + self.done + self.failed) / max(self.total, 1)

    def describe(self) -> str:
        """Return the progress in a line, with an estimate of the time left."""
        ran = self.done + self.failed
        text = f"{self.kept + ran} of {self.total} {self.what}"
        if self.failed:
            text += f", {self.failed} failed"
        if ran:
            left_s = (time.monotonic() - self.begun_s) / ran * (self.total - self.kept - ran)
            text += f", about {left_s:.0f} s left"
        return text


class RefusedError(KernbenchError, RuntimeError):
    """A worker does not have what the sweep was begun with."""


def run_points(
    points: Iterable[Point],
    again: frozenset[str],
    store: ResultFolder,
    engine: PointEngine,
    limits: Limits,
    progress: Progress,
    row: RowOf = row_of,
) -> None:
    """Run points and keep their results; those that another sweep runs are waited for.

    Those in ``again`` have a result, of a failure, which the new one replaces. ``row`` says what is
    kept of one beside its report.

    Raises:
        RefusedError: A worker has another program, or other versions.
        OutputError: A result cannot be kept.
    """
    waiting = deque(points)
    with store.taking() as claims:
        crew = Crew(engine, limits)
        while waiting or crew.running:
            elsewhere = _fill(crew, waiting, again, claims, store, progress)
            if crew.running:
                for point, answer in crew.finished():
                    _keep(point, answer, claims, limits, progress, row)
            elif elsewhere:
                time.sleep(_LOOK_AGAIN_S)


def results_of(
    points: Sequence[Point],
    store: ResultFolder,
    limits: Limits,
    workers: int | None,
    progress: Progress,
) -> dict[str, dict[str, Any]]:
    """Run the points that have no result yet in processes of this machine; return all, by key.

    A point that was lost with its process has none.
    """
    kept = store.rows(points)
    wanted = [point for point in points if point.key not in kept]
    progress.kept = len(kept)
    if not wanted:
        return kept
    with engine("local", workers) as local:
        run_points(wanted, frozenset(), store, local, limits, progress)
    return store.rows(points)


def _fill(
    crew: Crew,
    waiting: deque[Point],
    again: frozenset[str],
    claims: Claims,
    store: ResultFolder,
    progress: Progress,
) -> bool:
    """Hand points to the engine while it has room; say whether others are run elsewhere."""

    def is_there(point: Point) -> bool:
        row = store.row(point.key)
        return row is not None and (point.key not in again or row["status"] == "done")

    elsewhere = 0
    while len(waiting) > elsewhere and crew.has_room():
        point = waiting.popleft()
        if is_there(point):
            progress.kept += 1  # another sweep has run it meanwhile
        elif not claims.take(point.key):
            waiting.append(point)
            elsewhere += 1
        elif is_there(point):  # just before it was taken
            claims.drop(point.key)
            progress.kept += 1
        else:
            crew.submit(point)
    return elsewhere > 0


def _keep(
    point: Point,
    answer: Answer | None,
    claims: Claims,
    limits: Limits,
    progress: Progress,
    row_of: RowOf,
) -> None:
    if answer is None:
        claims.drop(point.key)
        progress.lost.append(point.label)
        return
    row = row_of(point, answer, {"timeout_s": limits.timeout_s, "memory_mb": limits.memory_mb})
    claims.keep(row, answer.get("report"))
    if row["status"] == "done":
        progress.done += 1
    else:
        progress.failed += 1


class Crew:
    """Points that an engine runs."""

    def __init__(self, engine: PointEngine, limits: Limits) -> None:
        self._engine = engine
        self._limits = {"timeout_s": limits.timeout_s, "memory_mb": limits.memory_mb}
        self.running: dict[Future[Answer], tuple[Point, int]] = {}

    def has_room(self) -> bool:
        """Return whether another point would run soon."""
        # One more than run at a time, so that no worker waits for us.
        return len(self.running) <= self._engine.slots()

    def submit(self, point: Point, attempt: int = 1) -> None:
        """Hand a point to the engine."""
        _LOG.debug("%s: handed to %s, attempt %d", point.label, self._engine.name, attempt)
        self.running[self._engine.submit({**point.job, **self._limits})] = (point, attempt)

    def finished(self) -> Iterator[tuple[Point, Answer | None]]:
        """Yield points with their answers as soon as there are any; None for one that is lost.

        Raises:
            RefusedError: A worker has another program, or other versions.
        """
        ended, _ = wait(self.running, return_when=FIRST_COMPLETED)
        for future in ended:
            point, attempt = self.running.pop(future)
            try:
                answer = future.result()
            except self._engine.lost:
                if attempt < _ATTEMPTS:
                    self.submit(point, attempt + 1)
                else:
                    yield point, None
                continue
            if "refused" in answer:
                raise RefusedError(f"a worker of {self._engine.name} refuses: {answer['refused']}")
            _LOG.info("%s: %s in %s s", point.label, answer["status"], answer.get("wall_s", "?"))
            yield point, answer
