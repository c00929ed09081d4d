"""torch.testing.assert_close."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from kernbench.dtypes import ALL
from kernbench.errors import CheckFailedError, UsageError
from kernbench.runtime_api import RuntimeContext
from kernbench.runtime_api.front.testing import Testing

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
            torch.testing.assert_close(actual, np.array([[1, 2], [4, 4.5]], np.float32), msg="y")
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

    for item in ALL:
        # Not every torch knows those.
        if not item.name.startswith(("float8", "uint")):
            assert default_tolerances(getattr(torch, item.name)) == item.tolerances


@triton.jit
def square_kernel(x_ptr, out_ptr, PRECISION: tl.constexpr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    x = tl.load(x_ptr + at)
    tl.store(out_ptr + at, tl.dot(x, x, input_precision=PRECISION))


def check_square(precision: str, expected: float | None = None, **options: Any) -> None:
    with RuntimeContext(**options) as torch:
        x = torch.randn(16, 16)
        out = torch.zeros(16, 16)
        square_kernel[(1,)](x, out, precision)
        square = x.numpy() @ x.numpy() if expected is None else np.full((16, 16), expected)
        assert_close(out, square, rtol=1e-5, atol=1e-5)


@pytest.mark.adr("0042-D11")
def test_a_failed_check_is_told_of_products_in_tf32() -> None:
    with pytest.raises(CheckFailedError) as failed:
        check_square("tf32")
    (note,) = failed.value.__notes__
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if "tl.dot(" in text
    )
    assert f"square_kernel at test_testing.py:{line}" in note
    assert 'input_precision="ieee"' in note
    check_square("ieee")
    check_square("tf32", tf32="ieee")


@pytest.mark.adr("0042-D11")
def test_a_check_that_fails_for_another_reason_is_told_nothing() -> None:
    with pytest.raises(CheckFailedError) as failed:
        check_square("tf32", tf32="ieee", expected=0.0)
    assert not hasattr(failed.value, "__notes__")
