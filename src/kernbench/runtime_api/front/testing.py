"""``torch.testing``: how a bench checks its results."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernbench.dtypes import Array, DType, as_dtype
from kernbench.errors import CheckFailedError, UsageError
from kernbench.runtime_api.tensors.host_read import read
from kernbench.runtime_api.tensors.tensor import Tensor


class Testing:
    """The module ``torch.testing``."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    def assert_close(
        self,
        actual: Any,
        expected: Any,
        rtol: float | None = None,
        atol: float | None = None,
        equal_nan: bool = False,
        msg: str | None = None,
    ) -> None:
        """Check ``|actual - expected| <= atol + rtol * |expected|`` everywhere.

        Both may be tensors, arrays or numbers. Tolerances default to torch's for the element
        type, the looser one where the two differ. A host read that takes no modeled copy.

        Raises:
            CheckFailedError: They differ; says in how many elements, by how much, and where.
        """
        if (rtol is None) != (atol is None):
            raise UsageError("assert_close: give both rtol and atol, or neither")
        left, left_type = _as_array(actual)
        right, right_type = _as_array(expected)
        if left.shape != right.shape:
            raise CheckFailedError(
                _headed(msg, f"shapes differ: actual {left.shape}, expected {right.shape}")
            )
        if rtol is None or atol is None:
            pairs = [dtype.tolerances for dtype in (left_type, right_type)]
            rtol, atol = max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
        _compare(left, right, rtol, atol, equal_nan, msg)


def _as_array(value: Any) -> tuple[Array, DType]:
    if isinstance(value, Tensor):
        return read(value, "assert_close"), value.dtype
    array = np.asarray(value)
    try:
        return array, as_dtype(array.dtype)
    except LookupError:
        raise UsageError(f"assert_close compares numbers, but got {type(value).__name__}") from None


def _compare(
    actual: Array, expected: Array, rtol: float, atol: float, equal_nan: bool, msg: str | None
) -> None:
    left, right = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        difference = np.abs(left - right)
        # Equal infinities differ by nan; an infinite expectation has no tolerance.
        close = (difference <= atol + rtol * np.abs(right)) & np.isfinite(right)
    close |= left == right
    if equal_nan:
        close |= np.isnan(left) & np.isnan(right)
    if close.all():
        return
    differing = int(close.size - np.count_nonzero(close))
    gap = np.where(close, 0.0, np.where(np.isnan(difference), np.inf, difference))
    with np.errstate(all="ignore"):
        relative = np.where(close, 0.0, gap / np.abs(right))
    relative[np.isnan(relative)] = np.inf
    worst, worst_relative = _worst(gap), _worst(relative)
    raise CheckFailedError(
        _headed(
            msg,
            f"{differing} of {close.size} elements differ ({100 * differing / close.size:.1f} %); "
            f"largest absolute difference {gap[worst]:.6g} at {worst} (actual {left[worst]:.6g}, "
            f"expected {right[worst]:.6g}, up to {atol:.3g} allowed); largest relative difference "
            f"{relative[worst_relative]:.6g} at {worst_relative} (up to {rtol:.3g} allowed)",
        )
    )


def _worst(values: Array) -> tuple[int, ...]:
    return tuple(int(number) for number in np.unravel_index(int(np.argmax(values)), values.shape))


def _headed(msg: str | None, text: str) -> str:
    return f"{msg}\n{text}" if msg else text
