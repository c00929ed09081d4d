"""Robust least squares for a handful of positive constants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Residuals = Callable[[Array], Array]

_DIFFERENCE = 0.02
_LONGEST_STEP = 0.35
_ENOUGH = 1e-3
_DAMPINGS = (0.0, 0.1, 1.0, 10.0)


def solve(
    residuals: Residuals,
    start: Array,
    lower: Array,
    upper: Array,
    *,
    scale: float,
    rounds: int,
    differences: Array | None = None,
) -> Array:
    """Return the constants, within bounds, that minimize the sum of ``rho(residual)``.

    ``rho(r) = 2 scale^2 (sqrt(1 + (r / scale)^2) - 1)``: quadratic for small residuals, linear for
    large ones, so that a few outliers do not determine the result. Steps are taken in the
    logarithm of the constants, by Gauss-Newton with damping where a whole step does not help. A
    round costs one evaluation per constant and one per damping tried. ``differences`` are the
    changes, in logarithms, by which slopes are found.
    """
    low, high = np.log(lower), np.log(upper)
    at = np.clip(np.log(start), low, high)
    array = residuals(np.exp(at))
    steps = np.full(len(start), _DIFFERENCE) if differences is None else differences
    for _ in range(rounds):
        # Away from the nearer bound, so that the difference is taken inside the bounds.
        signed = np.where(at + steps <= high, steps, -steps)
        columns = []
        for index, difference in enumerate(signed):
            moved = at.copy()
            moved[index] += difference
            columns.append((residuals(np.exp(moved)) - array) / difference)
        jacobian = np.stack(columns, axis=1)
        weights = (1 + (array / scale) ** 2) ** -0.25
        step = None
        for damping in _DAMPINGS:
            tried = _step(jacobian * weights[:, None], array * weights, damping, at, low, high)
            new = residuals(np.exp(at + tried))
            if _loss(new, scale) < _loss(array, scale):
                step, array = tried, new
                break
        if step is None:
            break
        at = at + step
        if np.abs(step).max() < _ENOUGH:
            break
    return np.asarray(np.exp(at))


def _loss(array: Array, scale: float) -> float:
    return float((np.sqrt(1 + (array / scale) ** 2) - 1).sum())


def _step(
    jacobian: Array, array: Array, damping: float, at: Array, low: Array, high: Array
) -> Array:
    """Return a damped step; constants that would leave their bounds are fixed at them."""
    free = np.ones(len(at), dtype=np.bool_)
    step = np.zeros(len(at))
    for _ in range(len(at)):
        part = jacobian[:, free]
        normal = part.T @ part
        normal += np.diag(damping * np.diag(normal) + 1e-12)
        step[:] = 0.0
        step[free] = -np.linalg.lstsq(normal, part.T @ array, rcond=None)[0]
        leaves = free & (((at <= low + 1e-9) & (step < 0)) | ((at >= high - 1e-9) & (step > 0)))
        if not leaves.any():
            break
        free &= ~leaves
    step = np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
    inside: Array = np.clip(at + step, low, high)
    return inside - at
