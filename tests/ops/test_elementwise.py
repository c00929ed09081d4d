from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench import ops
from kernbench.dtypes import as_dtype
from kernbench.errors import UsageError
from tests.ops.arrays import (
    DTYPES,
    FLOATS,
    Array,
    assert_close,
    broadcasting_shapes,
    laid_out,
    layouts,
    numpy_dtype,
    values,
)
from tests.tiers import daily, examples

few = examples(15)

ARITHMETIC: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
COMPARISONS: dict[str, Callable[..., Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def wide(array: Array) -> Array:
    return array.astype(np.int64 if array.dtype.kind == "i" else np.float64)


def tanh_gelu(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": tanh_gelu,
}


@pytest.mark.adr("0014-D2")
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@few
@given(data=st.data(), shapes=broadcasting_shapes(2))
def test_any_two_views_broadcast_as_in_numpy(
    torch: Any, dtype: str, data: st.DataObject, shapes: list[tuple[int, ...]]
) -> None:
    a, b = (values(shape, dtype, seed) for seed, shape in enumerate(shapes))
    x, y = (laid_out(torch, item, data.draw(layouts(item.shape))) for item in (a, b))
    np.testing.assert_array_equal(ops.sub(x, y).numpy(), a - b)


@pytest.mark.adr("0014-D3")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_rounds_once_like_numpy_in_double(torch: Any, name: str, dtype: str) -> None:
    a, b = values((3, 70), dtype, 1), values((3, 70), dtype, 2)
    result = getattr(ops, name)(torch.from_numpy(a), torch.from_numpy(b))
    assert result.dtype == as_dtype(dtype)
    expected = ARITHMETIC[name](wide(a), wide(b)).astype(numpy_dtype(dtype))
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_division_gives_a_fraction(torch: Any, dtype: str) -> None:
    a, b = values((3, 70), dtype, 1), np.abs(values((3, 70), dtype, 2)) + 1
    b = b.astype(a.dtype)
    result = ops.div(torch.from_numpy(a), torch.from_numpy(b))
    kind = "float32" if dtype == "int32" else dtype
    assert result.dtype == as_dtype(kind)
    assert_close(result, wide(a) / wide(b), kind)


@pytest.mark.parametrize("dtype", daily("bfloat16", "int32", of=DTYPES))
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_give_bools(torch: Any, name: str, dtype: str) -> None:
    a, b = values((5, 9), dtype, 1), values((9,), dtype, 2)
    result = getattr(ops, name)(torch.from_numpy(a), torch.from_numpy(b))
    np.testing.assert_array_equal(result.numpy(), COMPARISONS[name](a, b))


@pytest.mark.parametrize("dtype", daily("bfloat16", "float32", of=FLOATS))
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_element(torch: Any, name: str, dtype: str) -> None:
    a = values((4, 33), dtype)
    if name in ("log", "sqrt"):
        a = (np.abs(a) + 1).astype(a.dtype)
    for tensor, expected in ((torch.from_numpy(a), a), (torch.from_numpy(a).T, a.T)):
        assert_close(getattr(ops, name)(tensor), UNARY[name](wide(expected)), dtype, scale=4)


def test_the_gradient_of_gelu_is_that_of_central_differences(torch: Any) -> None:
    x = values((8, 40), "float32")
    grad = values((8, 40), "float32", 1)
    step = 1e-5
    slope = (tanh_gelu(wide(x) + step) - tanh_gelu(wide(x) - step)) / (2 * step)
    result = ops.gelu_backward(torch.from_numpy(grad), torch.from_numpy(x))
    assert_close(result, grad * slope, "float32", scale=8)


def test_the_gradient_of_relu_is_zero_where_the_input_was_not_positive(torch: Any) -> None:
    x, grad = values((50,), "float32"), values((50,), "float32", 1)
    result = ops.relu_backward(torch.from_numpy(grad), torch.from_numpy(x))
    np.testing.assert_array_equal(result.numpy(), np.where(x > 0, grad, 0))


@pytest.mark.adr("0014-D3")
@pytest.mark.parametrize(
    ("dtype", "other", "expected"),
    [
        ("float16", 1.5, "float16"),
        ("int32", 2, "int32"),
        ("int32", 1.5, "float32"),
        ("float16", "float32", "float32"),
        ("float16", "bfloat16", "float32"),
        ("int32", "float16", "float16"),
        ("int32", "int64", "int64"),
        ("bool", 1, "int64"),
    ],
)
def test_results_take_the_dtype_that_torch_gives(
    torch: Any, dtype: str, other: Any, expected: str
) -> None:
    x = torch.ones(3, dtype=dtype)
    y = torch.ones(3, dtype=other) if isinstance(other, str) else other
    for result in (ops.add(x, y), ops.add(y, x)):
        assert result.dtype == as_dtype(expected)
        assert result.tolist() == [1 + (1 if isinstance(other, str) else other)] * 3


@pytest.mark.adr("0014-D1")
def test_operators_of_tensors_are_launches_of_these_kernels(torch: Any) -> None:
    a, b = values((4, 6), "float32", 1), values((4, 6), "float32", 2)
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    before = {kernel["name"]: kernel["launches"] for kernel in torch.report()["kernels"]}
    np.testing.assert_array_equal((x + y * 2 - 1).numpy(), a + b * 2 - 1)
    np.testing.assert_array_equal((2 / (x * x + 1)).numpy(), 2 / (a * a + 1))
    after = {kernel["name"]: kernel["launches"] for kernel in torch.report()["kernels"]}
    added = {name: after[name] - before.get(name, 0) for name in ("add", "sub", "mul", "div")}
    assert added == {"add": 2, "sub": 1, "mul": 2, "div": 1}


def test_where_takes_tensors_and_numbers(torch: Any) -> None:
    a = values((6, 10), "float32")
    x = torch.from_numpy(a)
    result = ops.where(ops.gt(x, 0), x, -1.0)
    np.testing.assert_array_equal(result.numpy(), np.where(a > 0, a, -1))


def test_changes_in_place(torch: Any) -> None:
    a, b = values((6, 10), "float32", 1), values((10,), "float32", 2)
    x = torch.from_numpy(a.copy())
    assert ops.add_(x, torch.from_numpy(b), alpha=0.5) is x
    ops.mul_(x, 2)
    ops.add_(x, 1)
    np.testing.assert_array_equal(x.numpy(), (a + 0.5 * b) * 2 + 1)
    ops.fill(x[1:3, ::2], 7)
    assert (x.numpy()[1:3, ::2] == 7).all()
    assert (x.numpy()[1:3, 1::2] == ((a + 0.5 * b) * 2 + 1)[1:3, 1::2]).all()


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", [*DTYPES, "bool"])
def test_casts_round_like_numpy(torch: Any, source: str, target: str) -> None:
    a = values((7, 30), source)
    result = ops.cast(torch.from_numpy(a).T, as_dtype(target))
    assert result.is_contiguous()
    np.testing.assert_array_equal(result.numpy(), a.T.astype(numpy_dtype(target)))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_concat_puts_tensors_one_after_another(torch: Any, dim: int) -> None:
    shape = [4, 6, 5]
    arrays = []
    for size in (1, 3, 2):
        shape[dim] = size
        arrays.append(values(tuple(shape), "float16", size))
    result = ops.concat([torch.from_numpy(item) for item in arrays], dim)
    np.testing.assert_array_equal(result.numpy(), np.concatenate(arrays, dim))


def test_tensors_without_elements_launch_nothing(torch: Any) -> None:
    assert ops.add(torch.zeros(0, 3), 1).shape == (0, 3)
    assert ops.concat([torch.zeros(0, 3), torch.zeros(0, 3)]).shape == (0, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: ops.add(t.zeros(3), t.zeros(4)), r"shapes \(3,\) and \(4,\) do not broadcast"),
        (lambda t: ops.add(t.zeros(3), "x"), "must be a tensor or a number, but got str"),  # type: ignore[arg-type]
        (lambda t: ops.add(t.zeros(3), np.zeros(3)), "but got ndarray"),  # type: ignore[arg-type]
        (lambda t: ops.add_(t.zeros(3), t.zeros(2, 3)), "does not fit into a result of shape"),
        (lambda t: ops.add(t.zeros(3), 1, out=t.zeros(4, 1)), "does not fit into a result"),
        (lambda t: ops.add_(t.zeros(3, dtype="i32"), 0.5), "would lose its fraction"),
        (lambda t: ops.gelu(t.zeros(3, dtype="i32")), "gelu needs a floating-point tensor"),
        (lambda t: ops.concat([]), "at least one tensor"),
        (lambda t: ops.concat([t.zeros(2, 3), t.zeros(3, 2)]), r"\(2, 3\) and .* \(3, 2\)"),
        (lambda t: ops.concat([t.zeros(2)], 1), "dim 1 does not exist"),
        (lambda t: ops.fill(t.zeros(2), None), "must be a tensor or a number, but got NoneType"),  # type: ignore[arg-type]
    ],
)
def test_operands_that_do_not_fit_are_refused(torch: Any, call: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(torch)
