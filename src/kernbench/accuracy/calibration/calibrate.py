"""Fits the constants of a machine file to measured rows, and scores the result."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.accuracy.calibration.constants import Constant, constants_of, rate_at, rates_of
from kernbench.accuracy.calibration.least_squares import solve
from kernbench.accuracy.calibration.rows import Array, Modeled, modeled_rows
from kernbench.accuracy.rows import OWN, Category, Predictors, Row, part_of
from kernbench.accuracy.score import Errors, errors_of
from kernbench.errors import UnknownNameError, UsageError, nearest
from kernbench.hardware import (
    Machine,
    MachineSpec,
    changed_machine,
    edited,
    leaves,
    machine_text,
    parse_machine,
)

_SCALE = 0.05
"""The residual, as a logarithm of time, from which a row is treated as an outlier."""
_PRIOR = math.log(3)
"""How far a constant is from where it begins, as a standard deviation of its logarithm."""
_ROUNDS_OF_TILES = 3
_ROUNDS_OF_STEPS = 6
_NUDGE = 0.05
"""The change of a constant, as a logarithm, by which is seen which rows depend on it."""
_STILL = 1e-3
"""A change of a row's time, over that of the constant, below which the row does not tell it."""
_KNOWN = 0.25
"""A constant whose standard deviation is larger than this share of the prior's is not known."""
_OF_BOTH = 0.25
"""A product is known where it varies by less than this share of what its factors do."""
_FARTHEST = 12.0
"""The factor by which a constant may grow or shrink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedConstant:
    """One constant, and what rows say of it."""

    key: str
    before: float
    after: float
    deviation: float | None
    """Which share of itself a standard deviation is; None where no row tells."""
    rows: tuple[Row, ...] = ()
    """The rows whose times depend on it, those first that depend on it most."""

    @property
    def is_known(self) -> bool:
        """Whether rows say what it is, beside what else they depend on."""
        return self.deviation is not None and self.deviation < _KNOWN * _PRIOR


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryErrors:
    """Errors on the rows of a category, before and after."""

    category: Category
    fitted_before: Errors
    fitted_after: Errors
    """Errors on the rows that the constants were fitted to."""
    apart_before: Errors
    apart_after: Errors
    """Errors on held-out rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A machine's text with fitted constants, what is known of each, and the errors."""

    text: str
    constants: tuple[FittedConstant, ...]
    errors: tuple[CategoryErrors, ...]
    sources: tuple[str, ...]
    refused: tuple[tuple[Row, str], ...]
    """Rows that were not used, and why."""
    together: tuple[tuple[str, str, float], ...] = ()
    """Pairs of constants of which rows know the product alone, with its deviation."""
    stated: dict[str, str] = field(default_factory=dict)
    """Rates that stay because a source states them, with it."""


def calibrate(
    machine: str,
    rows: Sequence[Row],
    *,
    parts: int = 4,
    most_rows: int = 120,
    only: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
    predictors: Predictors = OWN,
) -> Calibration:
    """Return ``machine`` with its constants fitted to rows of its devices.

    All rows are fitted to at once, by robust least squares on the logarithm of time; each constant
    is held near where it begins by a prior, so that one that no row depends on stays there. One of
    ``parts`` parts of the rows, by whole shapes, is held out and only scored; of each category at
    most ``most_rows`` are fitted to, and as many scored, chosen deterministically. ``only`` names
    the constants that may change; else they are those that no vendor states, and rates, bandwidths
    and ports that no source states. ``say`` is called with lines that report progress;
    ``predictors`` answer rows.

    Raises:
        UsageError: No row is of a device of the machine, or can be predicted.
        UnknownNameError: ``only`` names no constant.
    """
    if parts < 2:
        raise UsageError(f"parts must be at least 2, one of them held out, but got {parts}")
    text, origin = machine_text(machine)
    start = parse_machine(text, origin)
    spec = start.spec
    own = [row for row in rows if row.device in spec.devices]
    if not own:
        devices = sorted({row.device for row in rows})
        raise UsageError(
            f"no row is of a device of {spec.name}: its devices are "
            f"{', '.join(spec.devices) or 'none (add devices: [NAME] to the file)'}; "
            f"the rows are of {', '.join(devices) or 'none'}"
        )
    categories = [category for category in Category if any(row.category is category for row in own)]
    constants, stated = _constants(spec, categories, only)
    fit = _Fit(start, constants, predictors, say)
    refused = [
        (row, f"of {row.device}, no device of {spec.name}") for row in rows if row not in own
    ]
    for category in categories:
        refused += fit.take(category, own, parts, most_rows)
    if not fit.fitted or not constants:
        why = "; ".join(dict.fromkeys(f"{row.where}: {said}" for row, said in refused[:3]))
        raise UsageError(
            f"nothing to fit: no row determines a constant of {spec.name}"
            + (f" named {', '.join(only)}" if only else "")
            + (f"; {why}" if why else "")
        )
    return fit.run(text, origin, refused, stated)


def _constants(
    spec: MachineSpec, categories: Sequence[Category], only: Sequence[str]
) -> tuple[list[Constant], dict[str, str]]:
    """Return what may be fitted, and rates that are stated.

    Raises:
        UnknownNameError: ``only`` names no constant.
    """
    data = spec.model_dump(mode="json", exclude_defaults=True)
    free, stated = rates_of(spec)
    every = [constant for category in Category for constant in constants_of(category, data)] + free
    if not only:
        asked = [
            constant for category in categories for constant in constants_of(category, data)
        ] + free
        has_links = Category.COLLECTIVES in categories
        return [
            constant for constant in asked if has_links or not constant.key.startswith("links.")
        ], stated
    every += map(rate_at, stated)
    known = {constant.key: constant for constant in every}
    for key in only:
        if key not in known:
            raise UnknownNameError(
                f"{spec.name} has no constant {key!r} to fit: {nearest(key, known)}"
            )
    return [known[key] for key in only], {}


class _Fit:
    """A fit of constants to rows of all categories."""

    def __init__(
        self,
        machine: Machine,
        constants: Sequence[Constant],
        predictors: Predictors,
        say: Callable[[str], None],
    ) -> None:
        self.machine, self.constants, self.predictors = machine, constants, predictors
        self.say = say
        data = dict(leaves(machine.spec.model_dump(mode="json")))
        self.start = np.array([data[constant.key] for constant in constants], dtype=np.float64)
        self.fitted: list[Modeled] = []
        self.apart: list[Modeled] = []
        self._known: dict[tuple[float, ...], Machine] = {}
        self._moves: list[npt.NDArray[np.bool_]] = []
        """Which constants the rows of each of ``fitted`` depend on; empty: not known yet."""
        self._times: list[dict[tuple[float, ...], Array]] = []

    def take(
        self, category: Category, rows: Sequence[Row], parts: int, most_rows: int
    ) -> list[tuple[Row, str]]:
        """Take the rows of a category; return those that are not used, and why."""
        own = [row for row in rows if row.category is category]
        refused = [(row, row.why_no_time) for row in own if not row.time_us]
        timed = [row for row in own if row.time_us]
        shuffled = random.Random(1).sample(timed, len(timed))
        for held, into in ((False, self.fitted), (True, self.apart)):
            part = [row for row in shuffled if (part_of(row, parts) == 0) is held]
            if not part:
                continue
            refused += [(row, "more rows than --rows") for row in part[most_rows:]]
            modeled = modeled_rows(category, part[:most_rows], self.machine, self.predictors)
            refused += modeled.refused
            if modeled.rows:
                into.append(modeled)
        self.say(
            f"{category}: {_count(self.fitted, category)} rows to fit to, "
            f"{_count(self.apart, category)} held out"
        )
        return refused

    def with_values(self, values: Array) -> Machine:
        """Return the machine with the given constants."""
        key = tuple(values.tolist())
        machine = self._known.get(key)
        if machine is None:
            self._known.clear()
            changes = dict(self._numbers(values))
            machine = self._known[key] = changed_machine(self.machine, changes)
        return machine

    def _numbers(self, values: Array) -> list[tuple[str, Any]]:
        pairs = []
        for constant, value in zip(self.constants, values.tolist(), strict=True):
            number = max(round(value), 1) if constant.is_whole else float(f"{value:.6g}")
            pairs += [(key, number) for key in (constant.key, *constant.tied)]
        return pairs

    def run(
        self, text: str, origin: str, refused: Sequence[tuple[Row, str]], stated: dict[str, str]
    ) -> Calibration:
        before = [_errors(modeled, self.machine) for modeled in (*self.fitted, *self.apart)]
        values = self._solve()
        self._moves = []  # where the fit ended, rows may depend on others
        slopes = self._slopes(values)
        covariance = self._covariance(values, slopes)
        constants = self._said(values, slopes, np.sqrt(np.diag(covariance)))
        tells = np.array([fitted_constant.deviation is not None for fitted_constant in constants])
        values = np.where(tells, values, self.start)
        constants = [
            constant
            if is_told
            else FittedConstant(
                key=constant.key, before=constant.before, after=constant.before, deviation=None
            )
            for constant, is_told in zip(constants, tells, strict=True)
        ]  # fmt: skip
        machine = self.with_values(values)
        rows = [row for modeled in self.fitted for row in modeled.rows]
        named = sorted({row.source for row in rows})
        numbers, sources = {}, {}
        said = f"fitted to {len(rows)} rows of {', '.join(named)}"
        told = {constant.key for constant, tell in zip(self.constants, tells, strict=True) if tell}
        tied = {key: constant.key for constant in self.constants for key in constant.tied}
        for key, number in self._numbers(values):
            if tied.get(key, key) in told:
                numbers[key] = number
                sources[key] = f"tied to {tied[key]}" if key in tied else said
        for modeled in (*self.fitted, *self.apart):
            modeled.narrow(machine)
        after = [_errors(item, machine) for item in (*self.fitted, *self.apart)]
        return Calibration(
            text=edited(text, numbers, sources, origin),
            constants=tuple(constants),
            errors=tuple(self._by_category(before, after)),
            sources=tuple(named),
            refused=tuple(refused),
            together=tuple(_together(constants, covariance)),
            stated=stated,
        )

    def _by_category(
        self, before: Sequence[Errors], after: Sequence[Errors]
    ) -> list[CategoryErrors]:
        nothing = errors_of(np.zeros(0), np.zeros(0))
        places: dict[Category, dict[bool, int]] = {}
        for number, modeled in enumerate((*self.fitted, *self.apart)):
            is_apart = number >= len(self.fitted)
            places.setdefault(modeled.rows[0].category, {})[is_apart] = number

        def at(errors: Sequence[Errors], place: int | None) -> Errors:
            return nothing if place is None else errors[place]

        return [
            CategoryErrors(
                category=category,
                fitted_before=at(before, where.get(False)),
                fitted_after=at(after, where.get(False)),
                apart_before=at(before, where.get(True)),
                apart_after=at(after, where.get(True)),
            )
            for category, where in places.items()
        ]

    def _solve(self) -> Array:
        shares = np.array([constant.is_share for constant in self.constants])
        upper = np.where(shares, np.minimum(1.0, self.start * _FARTHEST), self.start * _FARTHEST)
        lower = self.start / _FARTHEST
        values = np.minimum(self.start, upper)
        for number in range(_ROUNDS_OF_TILES):
            machine = self.with_values(values)
            changed = [modeled.narrow(machine) for modeled in self.fitted] if number else [True]
            if not any(changed):
                break
            if not self._moves:
                self._find_what_moves(values)
            # Narrowed, rows have other times.
            self._times = [{} for _ in self.fitted]
            free = np.logical_or.reduce(self._moves)
            if not free.any():
                break  # no row depends on any constant
            base = values.copy()

            def residuals(tried: Array, base: Array = base, free: Any = free) -> Array:
                return self._residuals(_placed(base, free, tried))

            tried = solve(
                residuals,
                values[free],
                lower[free],
                upper[free],
                scale=_SCALE,
                rounds=_ROUNDS_OF_STEPS,
                differences=self._differences(values)[free],
            )
            values = _placed(values, free, tried)
            result = np.abs(np.exp(self._of_rows(values)) - 1)
            self.say(f"round {number + 1} of {_ROUNDS_OF_TILES}: MAPE {100 * result.mean():.2f}")
        return values

    def _find_what_moves(self, values: Array) -> None:
        """Find which constants the rows depend on, so that others' times are not asked again."""
        slopes = np.abs(self._slopes(values)) > _STILL
        ends = np.cumsum([len(modeled.rows) for modeled in self.fitted])
        parts = np.split(slopes, ends[:-1])
        self._moves = [np.asarray(part.any(axis=0)) for part in parts]

    def _differences(self, values: Array) -> Array:
        """Return by how much, as a logarithm, constants change to see what depends on them."""
        whole = np.array([constant.is_whole for constant in self.constants])
        return np.where(whole, np.maximum(0.02, np.log1p(1 / np.maximum(values, 1))), 0.02)

    def _of_rows(self, values: Array) -> Array:
        """Return the logarithms of modeled over measured times."""
        rows = []
        for number, modeled in enumerate(self.fitted):
            moves = self._moves[number] if self._moves else slice(None)
            known = self._times[number] if self._moves else {}
            key = tuple(values[moves].tolist())
            if key not in known:
                known[key] = modeled.times_us(self.with_values(values))
            rows.append(np.log(known[key] / np.array([row.time_us for row in modeled.rows])))
        return np.concatenate(rows)

    def _residuals(self, values: Array) -> Array:
        away = np.log(values / self.start) * (_SCALE / _PRIOR)
        return np.concatenate([self._of_rows(values), away])

    def _slopes(self, values: Array) -> Array:
        """Return how each row's time goes with each constant, both as logarithms."""
        here = self._of_rows(values)
        steps = np.maximum(self._differences(values), _NUDGE)
        columns = []
        for index, (constant, step) in enumerate(zip(self.constants, steps, strict=True)):
            tried = values.copy()
            tried[index] *= math.exp(-step if constant.is_share else step)
            columns.append((self._of_rows(tried) - here) / (-step if constant.is_share else step))
        return np.stack(columns, axis=1)

    def _covariance(self, values: Array, slopes: Array) -> Array:
        """Return how the logarithms of constants vary, as in a linear model with the prior."""
        off = self._of_rows(values)
        # Measurements that the model fits no better than this are no better than this.
        noise = max(float(np.sqrt(np.mean(off**2))), 0.01)
        normal = slopes.T @ slopes / noise**2 + np.eye(len(values)) / _PRIOR**2
        return np.asarray(np.linalg.inv(normal))

    def _said(self, values: Array, slopes: Array, deviations: Array) -> list[FittedConstant]:
        """Return the constants with what rows say of each."""
        rows = [row for modeled in self.fitted for row in modeled.rows]
        fitted_constants = []
        for index, constant in enumerate(self.constants):
            strength = np.abs(slopes[:, index])
            order = np.argsort(-strength, kind="stable")
            own = [rows[place] for place in order if strength[place] > _STILL]
            fitted_constants.append(
                FittedConstant(
                    key=constant.key,
                    before=float(self.start[index]),
                    after=float(self._numbers(values)[self._place(index)][1]),
                    deviation=float(deviations[index]) if own else None,
                    rows=tuple(own),
                )
            )
        return fitted_constants

    def _place(self, index: int) -> int:
        return sum(1 + len(constant.tied) for constant in self.constants[:index])


def _placed(values: Array, free: npt.NDArray[np.bool_], tried: Array) -> Array:
    """Return values with those that are free replaced."""
    array = values.copy()
    array[free] = tried
    return array


def _together(
    fitted_constants: Sequence[FittedConstant], covariance: Array
) -> Iterator[tuple[str, str, float]]:
    """Yield pairs of constants that are not known, and whose product is."""
    unknown = [
        n
        for n, fitted_constant in enumerate(fitted_constants)
        if fitted_constant.deviation and not fitted_constant.is_known
    ]
    for one, other in combinations(unknown, 2):
        both = covariance[one, one] + covariance[other, other] + 2 * covariance[one, other]
        least = min(covariance[one, one], covariance[other, other])
        if 0 <= both < _OF_BOTH**2 * least:
            yield fitted_constants[one].key, fitted_constants[other].key, math.sqrt(both)


def _count(models: Sequence[Modeled], category: Category) -> int:
    return sum(len(model.rows) for model in models if model.rows[0].category is category)


def _errors(rows: Modeled, machine: Machine) -> Errors:
    if not rows.rows:
        return errors_of(np.zeros(0), np.zeros(0))
    return errors_of(rows.times_us(machine), np.array([row.time_us for row in rows.rows]))
