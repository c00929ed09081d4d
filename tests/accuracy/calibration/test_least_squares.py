"""The solver finds constants that are there, inside bounds, whatever a few rows say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.accuracy.calibration.least_squares import solve
from tests.tiers import examples

RNG = np.random.default_rng(7)
COMPUTE, MEMORY = 10 ** RNG.uniform(0, 3, size=(2, 60))


def times(constants: np.ndarray) -> np.ndarray:
    t0, a, b = constants
    return t0 + np.maximum(a * COMPUTE, b * MEMORY)


def found(measured: np.ndarray, upper: float = 10.0) -> np.ndarray:
    return solve(
        lambda tried: np.log(times(tried) / measured),
        np.ones(3),
        np.full(3, 0.1),
        np.full(3, upper),
        scale=0.05,
        rounds=30,
    )


@examples(20)
@given(st.tuples(*[st.floats(0.3, 6)] * 3))
def test_constants_of_exact_measurements_are_found(truth: tuple[float, ...]) -> None:
    assert found(times(np.array(truth))) == pytest.approx(truth, rel=0.02)


def test_a_few_rows_that_nothing_explains_do_not_decide() -> None:
    truth = np.array([2.0, 1.5, 0.7])
    measured = times(truth)
    measured[::12] *= 3
    assert found(measured) == pytest.approx(truth, rel=0.03)


def test_a_constant_never_leaves_its_bounds() -> None:
    """The truth lies outside: the constant ends at its bound, the others do what they can."""
    constants = found(times(np.array([1.0, 5.0, 1.0])), upper=2.0)
    assert constants[1] == pytest.approx(2.0)
    assert (constants <= 2.0 + 1e-9).all()
