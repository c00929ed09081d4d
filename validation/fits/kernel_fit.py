"""Fit the constants of vendor libraries' kernels to measured rows, and score rows kept apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch

import numpy as np
import yaml

from kernbench.accuracy.calibration import Array, solve
from kernbench.accuracy.rows import Category, Predictor, Row, is_apart
from kernbench.accuracy.score import Errors, errors_of
from kernbench.errors import KernbenchError, UsageError
from kernbench.hardware import KernelConstants, KernelFamily, KernelLibrary
from validation.kernels import load_library
from validation.predictors.library_rows import LibraryPredictor, MeasuredKernels
from validation.predictors.registry import make_predictor

_SCALE = 0.08
"""Residuals, as logarithms of time, from which on a row counts as one that nothing explains."""
_ROUNDS = 12
_LEAST, _MOST = 1e-3, 1e3
"""Bounds of the times of an entry, in its own units."""
_SHARES = {
    "tensor_share": 1.2,
    "vector_share": 2.0,
    "memory_share": 1.1,
    "cache_share": 2.0,
    "store_share": 2.0,
}
"""Bounds of the shares; above 1 where a machine file's own rate is an assumption."""
_LEAST_SHARE = 0.05
_LEAST_ROWS_PER_CONSTANT = 3
_NUDGE = 1.1
"""The factor by which a constant is changed to see whether any row depends on it."""
_STILL = 1e-6
"""Changes of a time that are rounding."""
_DIGITS = 5
_LATENCIES = {
    "trip_ns": 1e4,
    "miss_ns": 1e4,
    "tile_ns": 1e5,
    "row_ns": 1e3,
    "fixed_us": 1e3,
    "ramp_us": 8,
}


@dataclass(frozen=True, slots=True)
class Change:
    """One constant before and after."""

    kernel: str
    key: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class KernelFit:
    """An architecture's kernels with fitted constants, and the errors."""

    library: KernelLibrary
    changes: tuple[Change, ...]
    """Every constant that was fitted."""
    fitted: Errors
    """On the rows that the constants were fitted to."""
    apart: Errors
    """On rows kept apart."""


@dataclass(frozen=True, slots=True)
class RowsOfKernels:
    """Rows, the kernels that each launched, and what was modeled last."""

    rows: tuple[Row, ...]
    measured: tuple[MeasuredKernels, ...]
    last: list[tuple[tuple[KernelConstants, ...], float]] = field(default_factory=list)
    """The constants that each row was modeled with before, and its time."""

    @property
    def times_us(self) -> Array:
        return np.array([row.time_us for row in self.rows], dtype=np.float64)

    def modeled_us(self, library: KernelLibrary) -> Array:
        """Return the times; a row whose kernels have the constants of before is not timed again."""
        names = {name for measured_kernels in self.measured for name in measured_kernels.names}
        constants = {name: library.constants(name) for name in names}
        if not self.last:
            self.last.extend([((), 0.0)] * len(self.measured))
        for index, measured_kernels in enumerate(self.measured):
            used = tuple(constants[name] for name in measured_kernels.names)
            before = self.last[index][0]
            if len(before) != len(used) or any(
                old is not new for old, new in zip(before, used, strict=True)
            ):
                self.last[index] = (used, measured_kernels.time_us(lambda name: library))
        return np.array([time for _, time in self.last])

    def errors(self, library: KernelLibrary) -> Errors:
        """Return the errors of their times."""
        return errors_of(self.modeled_us(library), self.times_us)

    def names(self, only: Sequence[str] = ()) -> list[str]:
        """Return the kernels that they launched, of patterns if there are any."""
        names = sorted({name for measured in self.measured for name in measured.names})
        return [name for name in names if _is_named(name, only)]

    def launching(self, kernel: str) -> RowsOfKernels:
        """Return those that launched a kernel."""
        pairs = zip(self.rows, self.measured, strict=True)
        return _of([pair for pair in pairs if kernel in pair[1].names])


def rows_of_kernels(
    architecture: str, rows: Sequence[Row], only: Sequence[str] = ()
) -> tuple[RowsOfKernels, RowsOfKernels]:
    """Return the rows that constants are fitted to and those kept apart, of kernels by patterns."""
    named = [name for name in load_library(architecture).names() if _is_named(name, only)]
    pairs = _measured(architecture, rows, named)
    kept, apart = (
        [pair for pair in pairs if is_apart(pair[0]) is is_kept_apart]
        for is_kept_apart in (False, True)
    )
    return _of(kept), _of(apart)


def _is_named(kernel: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch(kernel, pattern) for pattern in patterns)


def _of(pairs: Sequence[tuple[Row, MeasuredKernels]]) -> RowsOfKernels:
    return RowsOfKernels(tuple(row for row, _ in pairs), tuple(item for _, item in pairs))


def fit_kernels(
    architecture: str,
    rows: Sequence[Row],
    only: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
    hold: float = 0.0,
) -> KernelFit:
    """Return an architecture's kernels with those named by ``only`` (patterns) fitted to rows.

    Fitted are the constants that a kernel's entry gives already, wherever it begins: what an entry
    leaves out keeps its default. Rows are those of the devices of machines that name the
    architecture, and that launch one of these kernels; one in four, by whole shapes, is kept apart.
    ``hold`` is how much a constant's distance from its first guess weighs beside one row's error,
    both as logarithms: it keeps constants that few rows determine near what was guessed.

    Raises:
        UsageError: No row launches a kernel of them, or too few for the constants.
    """
    library = load_library(architecture)
    parts = kept, apart = rows_of_kernels(architecture, rows, only)
    keys = [(name, key) for name in kept.names(only) for key in library.constants(name).given]
    say(f"{len(kept.rows)} rows to fit {len(keys)} constants to, {len(apart.rows)} kept apart")
    if len(kept.rows) < _LEAST_ROWS_PER_CONSTANT * max(len(keys), 1):
        raise UsageError(
            f"{len(keys)} constants of {architecture} need at least "
            f"{_LEAST_ROWS_PER_CONSTANT * max(len(keys), 1)} rows, but there are {len(kept.rows)}"
        )
    kernel_library = fitted(library, kept, keys, hold)
    both = library, kernel_library
    changes = tuple(
        Change(name, key, *(float(getattr(of.constants(name), key)) for of in both))
        for name, key in keys
    )
    return KernelFit(kernel_library, changes, *(part.errors(kernel_library) for part in parts))


def fitted(
    library: KernelLibrary, kept: RowsOfKernels, keys: Sequence[tuple[str, str]], hold: float = 0.0
) -> KernelLibrary:
    """Return a library with constants, by kernels and keys, as rows ask for them."""
    start = np.array([float(getattr(library.constants(name), key)) for name, key in keys])
    lower, upper = (np.array(pair) for pair in zip(*map(_bounds, keys), strict=True))
    measured = kept.times_us
    start = np.clip(start, lower, upper)
    reused: dict[str, tuple[dict[str, float], KernelConstants]] = {}

    def residuals(values: Array) -> Array:
        tried = _with(library, keys, values, before=reused)
        errors = np.log(kept.modeled_us(tried) / measured)
        return np.concatenate([errors, hold * np.log(values / start)]) if hold else errors

    values = solve(residuals, start, lower, upper, scale=_SCALE, rounds=_ROUNDS)
    moved = _moved(lambda tried: kept.modeled_us(_with(library, keys, tried)), values)
    values = np.where(moved, values, start)
    unmoved = [key for key, is_moved in zip(keys, moved, strict=True) if not is_moved]
    sources = _sources(kept, {name for name, _ in keys}, unmoved)
    return _with(library, keys, values, sources)


def family_as_text(family: KernelFamily, comment: str = "") -> str:
    """Return the YAML text of a family's kernels, in order of their names."""
    kernels = {
        name: {
            **({"like": kernel.like} if kernel.like else {}),
            **{key: _plain(getattr(kernel, key)) for key in kernel.given},
            **({} if kernel.source == f"assumed: as {kernel.like}" else {"source": kernel.source}),
        }
        for name, kernel in sorted(family.kernels.items())
    }
    return comment + yaml.safe_dump({"kernels": kernels}, sort_keys=False, width=100)


def _measured(
    architecture: str, rows: Sequence[Row], named: Sequence[str]
) -> list[tuple[Row, MeasuredKernels]]:
    predictors: dict[Category, Predictor] = {}
    pairs = []
    for row in rows:
        if row.why_no_time:
            continue
        if row.category not in predictors:
            predictors[row.category] = make_predictor(row.category)
        predictor = predictors[row.category]
        if not isinstance(predictor, LibraryPredictor):
            continue
        try:
            measured = predictor.measured(row)
        except KernbenchError:
            continue
        if measured.machine.spec.kernel_library == architecture and any(
            name in named for name in measured.names
        ):
            pairs.append((row, measured))
    return pairs


def _bounds(key: tuple[str, str]) -> tuple[float, float]:
    name = key[1]
    if name == "store_share":
        return _LEAST, _SHARES[name]
    if name in _SHARES:
        return _LEAST_SHARE, _SHARES[name]
    return _LEAST, _LATENCIES.get(name, _MOST)


def _with(
    library: KernelLibrary,
    keys: Sequence[tuple[str, str]],
    values: Array,
    sources: Mapping[str, str] | None = None,
    before: dict[str, tuple[dict[str, float], KernelConstants]] | None = None,
) -> KernelLibrary:
    """Return a library with these constants; a kernel that has those of ``before`` is reused."""
    changes: dict[str, dict[str, float]] = {}
    for (name, key), value in zip(keys, values, strict=True):
        changes.setdefault(name, {})[key] = float(f"{value:.{_DIGITS}g}")
    kernels = {}
    for name, changed in changes.items():
        if before is not None and name in before and before[name][0] == changed:
            kernels[name] = before[name][1]
            continue
        old = library.constants(name)
        source = (sources or {}).get(name, old.source)
        entry = {**old.model_dump(include={"like", *old.given}), **changed, "source": source}
        kernels[name] = KernelConstants.model_validate(entry).over(old)
        if before is not None:
            before[name] = (changed, kernels[name])
    return library.changed(kernels)


def _moved(times_us: Callable[[Array], Array], values: Array) -> Array:
    """Return which of the values some row's time depends on."""
    times = times_us(values)
    flags = []
    for index in range(len(values)):
        tried = values.copy()
        tried[index] /= _NUDGE
        flags.append(bool(np.abs(times_us(tried) / times - 1).max() > _STILL))
    return np.array(flags)


def _sources(
    rows: RowsOfKernels, names: set[str], unmoved: Sequence[tuple[str, str]] = ()
) -> dict[str, str]:
    numbers: dict[str, tuple[int, set[str]]] = {}
    for row, measured_kernels in zip(rows.rows, rows.measured, strict=True):
        for name in names.intersection(measured_kernels.names):
            count, said = numbers.get(name, (0, set()))
            numbers[name] = (count + 1, said | {f"{row.source} {row.device}"})
    guessed = {name: [key for owner, key in unmoved if owner == name] for name in numbers}
    return {
        name: f"fitted to {count} rows of {', '.join(sorted(said))}"
        + (f"; assumed, as no row depends on it: {', '.join(guessed[name])}" * bool(guessed[name]))
        for name, (count, said) in numbers.items()
    }


def _plain(value: object) -> int | float:
    number = float(value)  # type: ignore[arg-type]
    return int(number) if number == int(number) else number
