"""From rows and answers to errors per category, device and source."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import get_context, parent_process
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.accuracy.rows import (
    OWN,
    Answer,
    Category,
    Machines,
    Predictor,
    Predictors,
    Row,
    presets,
)
from kernbench.errors import UnknownNameError, UsageError

_CHUNK = 24
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scored:
    """A row and the model's answer."""

    row: Row
    answer: Answer

    @property
    def error(self) -> float:
        """Modeled over measured time, minus 1; the row must have an answer."""
        assert self.answer.time_us is not None
        return self.answer.time_us / self.row.time_us - 1


@dataclass(frozen=True, slots=True)
class Errors:
    """The errors of a set of rows, in percent; None where no row has an answer."""

    rows: int
    unanswered: int
    mape: float | None
    median: float | None
    p90: float | None
    bias: float | None
    spearman: float | None
    """Rank correlation of modeled and measured times, from -1 to 1."""


def answer_rows(
    rows: Sequence[Row],
    jobs: int = 1,
    advance: Callable[[int], Any] = lambda count: None,
    machines: Machines | None = None,
    predictors: Predictors = OWN,
) -> list[Scored]:
    """Return every row with the model's answer, in order; ``advance`` is called with rows done.

    Rows of equal shapes go to one process together, whatever their devices: its compiled and
    evaluated kernels serve all devices.

    Raises:
        UsageError: ``jobs`` is below 1, or a row has an invalid number.
        UnknownNameError: No row is of a device that a machine lists.
    """
    if jobs < 1:
        raise UsageError(f"jobs must be at least 1, but got {jobs}")
    machines = machines or presets()
    _check_devices(rows, machines)
    order = sorted(range(len(rows)), key=lambda index: _affinity(rows[index]))
    chunks = _chunks(order, rows)
    answers: dict[int, Answer] = {}
    if jobs == 1 or len(chunks) < 2:
        answerer = _Answerer(machines, predictors)
        for chunk in chunks:
            answer = answerer.answer([rows[index] for index in chunk])
            answers.update(zip(chunk, answer, strict=True))
            advance(len(chunk))
    else:
        context = get_context("spawn")
        with ProcessPoolExecutor(
            min(jobs, len(chunks)),
            context,
            initializer=_begin,
            initargs=(machines.added, predictors),
        ) as pool:
            with _interrupts_held():
                pending = {
                    pool.submit(_answer, [rows[index] for index in chunk]): chunk
                    for chunk in chunks
                }
            try:
                for future in as_completed(pending):
                    chunk = pending[future]
                    answers.update(zip(chunk, future.result(), strict=True))
                    advance(len(chunk))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return [Scored(row, answers[index]) for index, row in enumerate(rows)]


_SHAPE = ("n", "k", "m", "cols", "rows", "op", "n_ranks", "bytes", "model")


def _affinity(row: Row) -> tuple[str, ...]:
    shape = (row.fields.get(name, "") for name in (*_SHAPE, *row.form.together))
    return (row.category.value, row.dtype, *shape)


def _chunks(order: Sequence[int], rows: Sequence[Row]) -> list[list[int]]:
    """Cut rows into chunks for processes, never between rows of one shape."""
    chunks: list[list[int]] = []
    for _, alike in groupby(order, key=lambda index: _affinity(rows[index])):
        if not chunks or len(chunks[-1]) >= _CHUNK:
            chunks.append([])
        chunks[-1] += alike
    return chunks


class _Answerer:
    """The predictors of one process."""

    def __init__(self, machines: Machines, predictors: Predictors) -> None:
        self._machines = machines
        self._known = predictors
        self._predictors: dict[Category, Predictor] = {}

    def answer(self, rows: Iterable[Row]) -> list[Answer]:
        return [self._one(row) for row in rows]

    def _one(self, row: Row) -> Answer:
        if row.why_no_time:
            return Answer(None, row.why_no_time)
        if row.category not in self._known.by_category:
            return Answer(None, f"no model of {row.category.value} rows")
        if row.category not in self._predictors:
            self._predictors[row.category] = self._known.make(row.category, self._machines)
        try:
            return self._predictors[row.category].predict(row)
        except UnknownNameError as error:
            # The names that are known would be most of a page.
            return Answer(None, str(error).partition(": known: ")[0])


# The predictors of a pool's process, made by its initializer.
_ANSWERERS: list[_Answerer] = []


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block SIGINT; a process started meanwhile blocks it until :func:`_begin`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(added: tuple[tuple[str, str], ...], predictors: Predictors) -> None:
    # Ctrl-C reaches all processes of a terminal; only one should report it.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _ANSWERERS[:] = [_Answerer(Machines(added), predictors)]


def _end_with_parent() -> None:
    """End this process when the one that started it is killed; it would answer on and wait."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _answer(rows: list[Row]) -> list[Answer]:
    return _ANSWERERS[0].answer(rows)


def _check_devices(rows: Sequence[Row], machines: Machines) -> None:
    """Refuse rows if none of their devices is known: most likely a name is misspelt."""
    if rows and all(row.device not in machines for row in rows):
        try:
            machines.machine_of(rows[0].device)
        except UnknownNameError as error:
            raise UnknownNameError(f"{rows[0].where}: {error}") from None


def measure(scored: Iterable[Scored]) -> Errors:
    """Return the errors of rows."""
    rows = list(scored)
    answered = [row for row in rows if row.answer.time_us is not None]
    modeled = np.array([scored.answer.time_us for scored in answered], dtype=np.float64)
    measured = np.array([scored.row.time_us for scored in answered], dtype=np.float64)
    return errors_of(modeled, measured, len(rows) - len(answered))


def errors_of(modeled: Array, measured: Array, unanswered: int = 0) -> Errors:
    """Return the errors of modeled against measured times."""
    rows = len(modeled) + unanswered
    if not len(modeled):
        return Errors(rows, unanswered, None, None, None, None, None)
    signed = (modeled / measured - 1) * 100
    off = np.abs(signed)
    return Errors(
        rows=rows,
        unanswered=unanswered,
        mape=float(off.mean()),
        median=float(np.median(off)),
        p90=float(np.percentile(off, 90)),
        bias=float(signed.mean()),
        spearman=_spearman(modeled, measured),
    )


def _spearman(a: Array, b: Array) -> float | None:
    """Return the rank correlation, with mean ranks for ties; None if one side is constant."""
    ranks = [_ranks(values) for values in (a, b)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return None
    first, second = ranks
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse.reshape(-1)], dtype=np.float64)


def reasons(scored: Iterable[Scored]) -> list[tuple[int, str]]:
    """Return the reasons for rows without an answer with their counts, the most common first."""
    why_nots = Counter(item.answer.why_not for item in scored if item.answer.time_us is None)
    return [(count, reason) for reason, count in why_nots.most_common()]
