from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench import ops
from kernbench.errors import UsageError
from kernbench.ops.products.gemm import gemm, gemm_blocks
from kernbench.runtime_api import RuntimeContext
from kernbench.triton_backend.driver import DEVICE_KEY
from tests.ops.arrays import FLOATS, Array, assert_close, laid_out, layouts, values
from tests.tiers import examples


def product(a: Array, b: Array) -> Array:
    return np.matmul(a.astype(np.float64), b.astype(np.float64))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (16, 16, 16), (130, 70, 100), (5, 200, 0), (257, 33, 65)]
)
def test_matrices_of_any_size(torch: Any, dtype: str, m: int, n: int, k: int) -> None:
    a, b = values((m, k), dtype, 1), values((k, n), dtype, 2)
    result = ops.matmul(torch.from_numpy(a), torch.from_numpy(b))
    assert result.dtype.name == dtype
    assert_close(result, product(a, b), dtype, scale=4 * max(k, 1))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 48, 64), (16, 16, 16), (200, 130, 1000)])
def test_small_integers_are_summed_in_wider_ones(torch: Any, m: int, n: int, k: int) -> None:
    random = np.random.default_rng(0)
    a, b = (random.integers(-128, 128, shape, np.int8) for shape in ((m, k), (k, n)))
    out = torch.empty(m, n, dtype="i32")
    ops.matmul(torch.from_numpy(a), torch.from_numpy(b), out=out)
    assert np.array_equal(out.numpy(), a.astype(np.int64) @ b.astype(np.int64))
    with pytest.raises(UsageError, match="needs a floating-point tensor"):
        ops.matmul(torch.from_numpy(a), torch.from_numpy(b))


SHAPES = [
    ((5,), (5,)),
    ((4, 5), (5,)),
    ((5,), (5, 3)),
    ((2, 4, 5), (5, 3)),
    ((2, 4, 5), (5,)),
    ((2, 4, 5), (2, 5, 3)),
    ((2, 1, 4, 5), (3, 5, 2)),
    ((2, 3, 4, 5), (2, 3, 5, 2)),
    ((2, 3, 4, 5), (5, 2)),
    ((5,), (2, 5, 3)),
    ((0, 5), (5, 3)),
]


@pytest.mark.adr("0014-D2")
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES, ids=str)
@examples(6)
@given(data=st.data())
def test_batches_vectors_and_views_as_in_numpy(
    torch: Any, a_shape: tuple[int, ...], b_shape: tuple[int, ...], data: st.DataObject
) -> None:
    a, b = values(a_shape, "float32", 1), values(b_shape, "float32", 2)
    x, y = (laid_out(torch, item, data.draw(layouts(item.shape))) for item in (a, b))
    np.testing.assert_array_equal(ops.matmul(x, y).numpy(), product(a, b).astype(np.float32))


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
def test_the_epilogue_adds_bias_and_applies_the_activation(
    torch: Any, activation: str | None
) -> None:
    x, weight, bias = (values(s, "float32", i) for i, s in enumerate([(6, 10), (7, 10), (7,)]))
    value, w, b = (torch.from_numpy(item) for item in (x, weight, bias))
    result = ops.linear(value, w, b, activation=activation)
    expected = product(x, weight.T) + bias
    functions: dict[str | None, Any] = {
        None: lambda v: v,
        "relu": lambda v: np.maximum(v, 0),
        "gelu": lambda v: v / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (v + 0.044715 * v**3))),
        "silu": lambda v: v / (1 + np.exp(-v)),
    }
    with np.errstate(over="ignore"):
        assert_close(result, functions[activation](expected), "float32", scale=100)


def test_out_may_be_a_view(torch: Any) -> None:
    a, b = values((4, 5), "float32", 1), values((5, 6), "float32", 2)
    whole = torch.zeros(8, 12)
    ops.matmul(torch.from_numpy(a), torch.from_numpy(b), out=whole[::2, 6:])
    expected = np.zeros((8, 12), np.float32)
    expected[::2, 6:] = product(a, b)
    np.testing.assert_array_equal(whole.numpy(), expected)


def test_float64_is_summed_in_float64(torch: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((20, 30)), rng.standard_normal((30, 10))
    result = ops.matmul(torch.from_numpy(a), torch.from_numpy(b))
    assert_close(result, a @ b, "float64", scale=2.0**-20)


@pytest.mark.adr("0014-D4")
def test_shapes_with_the_same_tile_share_one_compilation(torch: Any) -> None:
    x, y = torch.zeros(100, 128), torch.zeros(128, 100)
    ops.matmul(x, y)
    kernels = gemm.device_caches[DEVICE_KEY][0]
    compiled = len(kernels)
    ops.matmul(x[:65, 1:], y[:127].T.contiguous().T)
    ops.matmul(torch.zeros(128, 1), torch.zeros(1, 77))
    assert len(kernels) == compiled
    assert gemm_blocks(100, 100, 4) == gemm_blocks(128, 77, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: ops.matmul(t.zeros(2, 3), t.zeros(4, 5)), "inner sizes 3 and 4 differ"),
        (lambda t: ops.matmul(t.zeros(2, 2, 3), t.zeros(3, 3, 2)), r"shapes \(2,\) and \(3,\)"),
        (lambda t: ops.matmul(t.zeros(2, 3), t.zeros(3, 2, dtype="f16")), "equal dtypes"),
        (lambda t: ops.matmul(t.zeros(2, 2, dtype="i32"), t.zeros(2, 2)), "floating-point"),
        (lambda t: ops.matmul(t.tensor(1.0), t.zeros(2, 2)), "at least 1 dims"),
        (lambda t: ops.matmul(t.zeros(2, 3), t.zeros(3, 2), bias=t.zeros(3)), r"shape \(2,\)"),
        (lambda t: ops.matmul(t.zeros(2, 3), t.zeros(3, 2), out=t.zeros(3)), r"shape \(2, 2\)"),
        (lambda t: ops.linear(t.zeros(2, 3), t.zeros(3)), "weight of 2 dims"),
        (lambda t: ops.linear(t.zeros(2, 3), t.zeros(2, 3), activation="elu"), "got 'elu'"),
    ],
)
def test_operands_that_do_not_fit_are_refused(torch: Any, call: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(torch)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_operands_of_float32_are_as_exact_as_asked(batch: tuple[int, ...]) -> None:
    """Ten bits of mantissa are left: 1 + 2**-10 is kept, and 1 + 2**-12 rounds to 1."""
    a = np.full((*batch, 32, 16), 1 + 2.0**-12, np.float32)
    b = np.full((*batch, 16, 32), 1 + 2.0**-10, np.float32)
    with RuntimeContext(machine="h100-sxm") as torch:
        x, y = torch.from_numpy(a), torch.from_numpy(b)
        exact = ops.matmul(x, y).numpy()
        rounded = ops.matmul(x, y, input_precision="tf32").numpy()
    np.testing.assert_array_equal(rounded, np.float32(16 * (1 + 2.0**-10)))
    np.testing.assert_allclose(exact, 16 * (1 + 2.0**-12) * (1 + 2.0**-10), rtol=4e-7)
    assert (exact > rounded + 0.003).all()
