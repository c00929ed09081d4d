"""torch.testing.assert_close."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import CheckFailedError, UsageError
from kernbench.runtime_api import RuntimeContext
from kernbench.runtime_api.testing import _TOLERANCES, Testing

assert_close = Testing().assert_close


@given(
    st.lists(st.floats(-10, 10) | st.just(float("inf")), max_size=5),
    st.lists(st.floats(-10, 10) | st.just(float("inf")), max_size=5),
)
def test_it_agrees_with_numpys_allclose(a: list[float], b: list[float]) -> None:
    size = min(len(a), len(b))
    left, right = np.array(a[:size]), np.array(b[:size])
    expected = np.allclose(left, right, rtol=0.1, atol=0.5)
    try:
        assert_close(left, right, rtol=0.1, atol=0.5)
    except CheckFailedError:
        assert not expected
    else:
        assert expected


def test_the_error_says_how_many_by_how_much_and_where() -> None:
    with RuntimeContext() as torch:
        actual = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
        with pytest.raises(CheckFailedError) as caught:
            torch.testing.assert_close(actual, np.float32([[1, 2], [4, 4.5]]), msg="y")
    assert str(caught.value) == (
        "y\n2 of 4 elements differ (50.0 %); largest absolute difference 1 at (1, 0) (actual 3, "
        "expected 4, up to 1e-05 allowed); largest relative difference 0.25 at (1, 0) "
        "(up to 1.3e-06 allowed)"
    )
    assert isinstance(caught.value, AssertionError)


def test_shapes_must_agree() -> None:
    with pytest.raises(CheckFailedError, match=r"actual \(2,\), expected \(2, 1\)"):
        assert_close(np.zeros(2), np.zeros((2, 1)))


def test_nan_is_close_only_if_asked() -> None:
    with pytest.raises(CheckFailedError, match="1 of 1"):
        assert_close([float("nan")], [float("nan")])
    assert_close([float("nan")], [float("nan")], equal_nan=True)


def test_infinities_and_integers_are_compared_exactly() -> None:
    assert_close([float("inf")], [float("inf")])
    with pytest.raises(CheckFailedError):
        assert_close([float("inf")], [float("-inf")])
    with pytest.raises(CheckFailedError):
        assert_close([1e30], [float("inf")])
    with pytest.raises(CheckFailedError):
        assert_close([1000], [1001])


def test_one_tolerance_alone_is_refused_and_so_is_what_is_no_number() -> None:
    with pytest.raises(UsageError, match="both rtol and atol"):
        assert_close([1], [1], rtol=0.1)
    with pytest.raises(UsageError, match="compares numbers, but got str"):
        assert_close("a", "b")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_the_tolerances_are_torchs() -> None:
    import torch
    from torch.testing._comparison import default_tolerances

    for name, tolerances in _TOLERANCES.items():
        dtype = getattr(torch, name)
        if not name.startswith("float8"):
            assert default_tolerances(dtype) == tolerances
