"""Speed-ups of compiled programs over eager ones, where both were measured and both are answered.

Two rows are a pair if a source measured one program both ways: on the same device, with the same
release, shapes and dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from kernbench.accuracy.rows import Category, Row
from kernbench.accuracy.score import Scored
from validation.predictors.families.chosen import is_compiled

_ALIKE = (
    "source", "device", "n_devices", "dtype", "torch_version", "program", "model", "attention",
    "seq_len", "local_batch", "batch_size", "img_size", "memory_format", "phase", "metric",
    "level", "problem", "folder", "commit", "part", "op", "input_size", "params",
)  # fmt: skip
"""Columns in which the rows of a pair are equal."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A compiled row, and the eager one of the same program."""

    compiled: Scored
    eager: Scored

    @property
    def measured(self) -> float:
        """How many times as fast the compiled program was."""
        return self.eager.row.time_us / self.compiled.row.time_us

    @property
    def modeled(self) -> float:
        """How many times as fast it is modeled."""
        assert self.eager.answer.time_us is not None
        assert self.compiled.answer.time_us is not None
        return self.eager.answer.time_us / self.compiled.answer.time_us

    @property
    def error(self) -> float:
        """Modeled over measured speed-up, minus 1."""
        return self.modeled / self.measured - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedups:
    """The pairs of a source on a device.

    Speed-ups are geometric means; ``mape`` is in percent.
    """

    source: str
    device: str
    pairs: int
    measured: float
    modeled: float
    mape: float


def pairs_of(scored: Sequence[Scored]) -> list[Pair]:
    """Return all pairs, in the order of their compiled rows."""
    answered = [
        item
        for item in scored
        if item.row.category is Category.PROGRAMS and item.answer.time_us is not None
    ]
    eager: dict[tuple[str, ...], Scored] = {}
    for item in answered:
        if not is_compiled(item.row):
            eager.setdefault(_program(item.row), item)
    return [
        Pair(scored, eager[_program(scored.row)])
        for scored in answered
        if is_compiled(scored.row) and _program(scored.row) in eager
    ]


def _program(row: Row) -> tuple[str, ...]:
    return tuple(row.fields.get(name, "") for name in _ALIKE)


def speedups_of(scored: Sequence[Scored]) -> list[Speedups]:
    """Return the speed-ups by source and device."""
    result: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs_of(scored):
        result.setdefault((pair.compiled.row.source, pair.compiled.row.device), []).append(pair)
    return [
        Speedups(
            source=source,
            device=device,
            pairs=len(pairs),
            measured=_geometric_mean([item.measured for item in pairs]),
            modeled=_geometric_mean([item.modeled for item in pairs]),
            mape=mean_error(pairs),
        )
        for (source, device), pairs in sorted(result.items())
    ]


def mean_error(pairs: Sequence[Pair]) -> float:
    """Return the mean absolute error of some speed-ups, in percent."""
    return 100 * sum(abs(pair.error) for pair in pairs) / len(pairs)


def _geometric_mean(numbers: Sequence[float]) -> float:
    return exp(sum(map(log, numbers)) / len(numbers))
