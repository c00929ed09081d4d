"""From rows and answers to errors per category, device and source."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


_HEAD = (
    "category", "device", "source", "op", "rows", "unanswered", "MAPE", "median", "p90", "bias",
)  # fmt: skip
_LEFT = 4
_MOST_REASONS = 12
Key = tuple[Category, str, str, str, str]
"""Category, device, source, operation, dtype."""


def by_group(scored: Iterable[Scored]) -> Mapping[Key, list[Scored]]:
    """Return rows by what they have in common, sorted."""
    groups: dict[Key, list[Scored]] = {}
    for one in scored:
        row = one.row
        key = (row.category, row.device, row.source, row.op, row.dtype)
        groups.setdefault(key, []).append(one)
    order = list(Category).index
    return dict(sorted(groups.items(), key=lambda item: (order(item[0][0]), *item[0][1:])))


def by_category(scored: Sequence[Scored]) -> Mapping[Category, list[Scored]]:
    """Return rows by category; those without rows are left out."""
    rows = {kind: [one for one in scored if one.row.category is kind] for kind in Category}
    return {kind: of_kind for kind, of_kind in rows.items() if of_kind}


def errors_json(scored: Sequence[Scored]) -> dict[str, Any]:
    """Return errors per category and per group, in percent."""
    totals, shown = ("rows", "unanswered", "mape", "median", "p90"), ("bias", "spearman")
    groups = [
        {
            **dict(zip(("category", "device", "source", "op", "dtype"), key, strict=True)),
            **_numbers(rows, (*totals, *shown)),
        }
        for key, rows in by_group(scored).items()
    ]
    categories = {kind.value: _numbers(rows, totals) for kind, rows in by_category(scored).items()}
    return {"categories": categories, "groups": groups}


def _numbers(rows: Sequence[Scored], names: Iterable[str]) -> dict[str, Any]:
    errors = measure(rows)
    return {name: getattr(errors, name) for name in names}


def errors_text(scored: Sequence[Scored], worst: int) -> str:
    """Return the table as text, with reasons of unanswered rows and the ``worst`` rows."""
    lines = [list(_HEAD)]
    for (kind, device, source, op, dtype), rows in by_group(scored).items():
        lines.append([kind.value, device, source, f"{op} {dtype}", *cells_of(measure(rows))])
    for kind, rows in by_category(scored).items():
        lines.append([kind.value, "all", "", "", *cells_of(measure(rows))])
    text = columns(lines, _LEFT)
    why = reasons(scored)
    if why:
        text += ["", "unanswered rows:"]
        text += [f"{count:>7}  {reason}" for count, reason in why[:_MOST_REASONS]]
        left = sum(count for count, _ in why[_MOST_REASONS:])
        text += [f"{left:>7}  for other reasons"] if left else []
    if worst:
        text += ["", f"the {worst} rows that are furthest off:", *furthest(scored, worst)]
    return "\n".join(text)


def cells_of(errors: Errors) -> list[str]:
    """Return the numbers of a line of the table, without rank correlations."""
    percent = [percent_of(value) for value in (errors.mape, errors.median, errors.p90)]
    bias = "-" if errors.bias is None else f"{errors.bias:+.1f}"
    return [str(errors.rows), str(errors.unanswered), *percent, bias]


def percent_of(value: float | None) -> str:
    """Return percent with one digit, a dash for none."""
    return "-" if value is None else f"{value:.1f}"


def columns(lines: Sequence[Sequence[str]], num_left: int) -> list[str]:
    """Return lines with aligned cells, the first ``num_left`` columns to the left."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < num_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def furthest(scored: Iterable[Scored], count: int) -> list[str]:
    """Return lines of the rows that are furthest off."""
    answered = [one for one in scored if one.answer.time_us is not None]
    # By ratio: half as long counts as much as twice as long.
    answered.sort(key=lambda one: -max(1 + one.error, 1 / max(1 + one.error, 1e-12)))
    return [
        f"{one.error * 100:>+8.1f} %  {one.answer.time_us or 0:>10.2f} for "
        f"{one.row.time_us:>10.2f} us  {one.row}  [{one.answer.how}]"
        f"  {one.row.source}, {one.row.where}"
        for one in answered[:count]
    ]
