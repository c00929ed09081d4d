"""Fits the constants of a machine file to measured rows, and scores the result."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernbench.accuracy.calibration.constants import Constant, constants_of, number_at
from kernbench.accuracy.calibration.least_squares import solve
from kernbench.accuracy.calibration.rows import Array, Modeled, RowModel
from kernbench.accuracy.rows import Category, Row, part_of
from kernbench.accuracy.score import Errors, errors_of
from kernbench.errors import UnknownNameError, UsageError, nearest
from kernbench.hardware import edited, machine_text, parse_machine
from kernbench.inputs import parse_yaml

_SCALE = 0.05
"""The residual, as a logarithm of time, from which a row is treated as an outlier."""
_ROUNDS_OF_TILES = 3
_ROUNDS_OF_STEPS = 4
_LEAST_ROWS_PER_CONSTANT = 3
_NUDGE = 1.1
"""The factor by which a constant is changed to see whether any row depends on it."""
_STILL = 1e-6
"""Changes of a time that are rounding."""
_FARTHEST = 6.0
"""The factor by which a constant may grow or shrink."""
_PLAIN = RowModel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Constants fitted to the rows of one category."""

    category: Category
    constants: tuple[tuple[str, float, float], ...]
    """Key, value before, and value after, per constant."""
    fitted_before: Errors
    fitted_after: Errors
    """Errors on the rows that the constants were fitted to."""
    apart_before: Errors
    apart_after: Errors
    """Errors on held-out rows."""
    sources: tuple[str, ...]
    undetermined: tuple[str, ...] = ()
    """Keys that no row's time depends on: they stay as they were, with their sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A machine's text with fitted constants, and the errors."""

    text: str
    fits: tuple[Fitted, ...]


def calibrate(
    machine: str,
    rows: Sequence[Row],
    *,
    parts: int = 4,
    most_rows: int = 120,
    only: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
    model: RowModel = _PLAIN,
) -> Calibration:
    """Return ``machine`` with its constants fitted to rows of its devices.

    One of ``parts`` parts of the rows, by whole shapes, is held out and only scored; at most
    ``most_rows`` are fitted to, and as many scored, chosen deterministically. ``only`` names the
    constants that may change. ``say`` is called with lines that report progress; ``model`` is how
    rows were measured.

    Raises:
        UsageError: No row is of a device of the machine, or there are too few for the constants.
        UnknownNameError: ``only`` names no constant.
    """
    if parts < 2:
        raise UsageError(f"parts must be at least 2, one of them held out, but got {parts}")
    text, origin = machine_text(machine)
    spec = parse_machine(text, origin).spec
    own = [row for row in rows if row.device in spec.devices]
    if not own:
        found = sorted({row.device for row in rows})
        raise UsageError(
            f"no row is of a device of {spec.name}: its devices are "
            f"{', '.join(spec.devices) or 'none (add devices: [NAME] to the file)'}; "
            f"the rows are of {', '.join(found) or 'none'}"
        )
    _check_names(only, parse_yaml(text, origin), spec.name)
    fits = []
    for category in Category:
        of_category = [row for row in own if row.category is category]
        constants = _chosen(constants_of(category, parse_yaml(text, origin)), only)
        if not of_category or not constants:
            continue
        fit = _Fit(text, origin, category, constants, model)
        text, fitted = fit.run(of_category, parts, most_rows, say)
        fits.append(fitted)
    if not fits:
        raise UsageError(
            f"nothing to fit: no row is of a category that determines a constant of {spec.name}"
            + (f" named {', '.join(only)}" if only else "")
        )
    return Calibration(text=text, fits=tuple(fits))


def _check_names(only: Sequence[str], data: Mapping[str, Any], name: str) -> None:
    known = {each.key for category in Category for each in constants_of(category, data)}
    for key in only:
        if key not in known:
            raise UnknownNameError(f"{name} has no constant {key!r} to fit: {nearest(key, known)}")


def _chosen(constants: Sequence[Constant], only: Sequence[str]) -> tuple[Constant, ...]:
    return tuple(each for each in constants if not only or each.key in only)


class _Fit:
    """A fit of the constants that one category determines."""

    def __init__(
        self,
        text: str,
        origin: str,
        category: Category,
        constants: Sequence[Constant],
        model: RowModel,
    ) -> None:
        self.text = text
        self.model = model
        self.origin = origin
        self.category = category
        self.constants = constants
        data = parse_yaml(text, origin)
        self.start = np.array([number_at(data, each.key) for each in constants], dtype=np.float64)

    def with_values(
        self, values: Sequence[float], source: str | None = None, moved: Sequence[bool] = ()
    ) -> str:
        """Return the machine's text with the given constants; ``source`` is of those ``moved``."""
        numbers = {}
        for constant, value in zip(self.constants, values, strict=True):
            for key in (constant.key, *constant.tied):
                numbers[key] = float(value)
        sources = {}
        if source is not None:
            for constant, is_moved in zip(self.constants, moved, strict=True):
                if is_moved:
                    sources[constant.key] = source
                    sources |= dict.fromkeys(constant.tied, f"tied to {constant.key}")
        return edited(self.text, numbers, sources, self.origin)

    def run(
        self, rows: Sequence[Row], parts: int, most_rows: int, say: Callable[[str], None]
    ) -> tuple[str, Fitted]:
        shuffled = random.Random(1).sample(list(rows), len(rows))
        kept, apart = (
            [row for row in shuffled if (part_of(row, parts) == 0) is held][:most_rows]
            for held in (False, True)
        )
        say(f"{self.category}: {len(kept)} rows to fit to, {len(apart)} held out")
        self._check_count(len(kept))
        fitted_to = self.model.of(self.category, kept, self.text)
        scored = self.model.of(self.category, apart, self.text) if apart else None
        self._check_count(len(fitted_to.rows))
        before = [_errors(each, self.text) for each in (fitted_to, scored)]
        values = self._solve(fitted_to, say)
        moved = self._moved(fitted_to, values)
        values = np.where(moved, values, self.start)
        keys = [each.key for each in self.constants]
        unmoved = tuple(key for key, each in zip(keys, moved, strict=True) if not each)
        for key in unmoved:
            say(f"{self.category}: {key} moves no row: left as it was")
        named = sorted({row.source for row in fitted_to.rows})
        said = f"fitted to {len(fitted_to.rows)} rows of {', '.join(named)}"
        text = self.with_values(list(values), said, list(moved))
        for each in (fitted_to, scored):
            if each is not None:
                each.narrow(text)
        after = [_errors(each, text) for each in (fitted_to, scored)]
        changes = zip(self.constants, self.start, values, strict=True)
        return text, Fitted(
            category=self.category,
            constants=tuple((each.key, float(old), float(new)) for each, old, new in changes),
            fitted_before=before[0],
            apart_before=before[1],
            fitted_after=after[0],
            apart_after=after[1],
            sources=tuple(named),
            undetermined=unmoved,
        )

    def _moved(self, rows: Modeled, values: Array) -> Array:
        """Return which constants some row's time depends on where the fit ended."""
        times = rows.times_us(self.with_values(list(values)))
        found = []
        for index, constant in enumerate(self.constants):
            tried = values.copy()
            tried[index] *= 1 / _NUDGE if constant.is_share else _NUDGE
            other = rows.times_us(self.with_values(list(tried)))
            found.append(bool(np.abs(other / times - 1).max() > _STILL))
        return np.array(found)

    def _check_count(self, found: int) -> None:
        least = _LEAST_ROWS_PER_CONSTANT * len(self.constants)
        if found < least:
            raise UsageError(
                f"{len(self.constants)} constants of {self.category} need at least {least} rows "
                f"that the model answers, but there are {found}; give more rows, or "
                f"name the constants to fit"
            )

    def _solve(self, rows: Modeled, say: Callable[[str], None]) -> Array:
        upper = np.array(
            [
                min(1.0, value * _FARTHEST) if each.is_share else value * _FARTHEST
                for each, value in zip(self.constants, self.start, strict=True)
            ]
        )
        lower = self.start / _FARTHEST
        values = self.start.copy()
        for number in range(_ROUNDS_OF_TILES):
            if number and not rows.narrow(self.with_values(list(values))):
                break
            values = solve(
                lambda tried: self._residuals(rows, tried),
                values,
                lower,
                upper,
                scale=_SCALE,
                rounds=_ROUNDS_OF_STEPS,
            )
            found = _errors(rows, self.with_values(list(values)))
            say(f"{self.category}: round {number + 1} of {_ROUNDS_OF_TILES}: MAPE {found.mape:.2f}")
        return values

    def _residuals(self, rows: Modeled, values: Array) -> Array:
        measured = np.array([row.time_us for row in rows.rows])
        return np.asarray(np.log(rows.times_us(self.with_values(list(values))) / measured))


def _errors(rows: Modeled | None, text: str) -> Errors:
    if rows is None or not rows.rows:
        return errors_of(np.zeros(0), np.zeros(0))
    return errors_of(rows.times_us(text), np.array([row.time_us for row in rows.rows]))
