"""Arrays for the tests of ops: views of all kinds, and what rounding a result may cost."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

Array = npt.NDArray[Any]

FLOATS = ("float16", "bfloat16", "float32")
DTYPES = (*FLOATS, "int32")
# One unit in the last place, relative.
ROUNDING = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-22, "float64": 2.0**-50}


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def values(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    """Return numbers between -4 and 4 in steps that every dtype holds exactly."""
    rng = np.random.default_rng([seed, *shape])
    steps = rng.integers(-16, 17, shape)
    return (steps if dtype == "int32" else steps / 4).astype(numpy_dtype(dtype))


def assert_close(actual: Any, expected: Array, dtype: str, scale: float = 1.0) -> None:
    """Compare with what numpy gives in float64; ``scale`` is how large the intermediates are."""
    array = actual.numpy()
    assert array.shape == expected.shape
    if not np.issubdtype(expected.dtype, np.inexact) or dtype not in ROUNDING:
        np.testing.assert_array_equal(array, expected)
        return
    tolerance = ROUNDING[dtype]
    np.testing.assert_allclose(
        array.astype(np.float64), expected.astype(np.float64), rtol=tolerance * 1.01,
        atol=max(scale * 2.0**-20, scale * tolerance * 2.0**-4),
    )  # fmt: skip


sizes = st.integers(1, 7)
shapes = st.lists(sizes, max_size=4).map(tuple)


@st.composite
def broadcasting_shapes(draw: Any, count: int = 2) -> list[tuple[int, ...]]:
    """Shapes that broadcast with each other: each drops leading dims or has 1 in some."""
    full = draw(shapes)
    result = []
    for _ in range(count):
        start = draw(st.integers(0, len(full)))
        kept = [1 if draw(st.booleans()) else size for size in full[start:]]
        result.append(tuple(kept))
    return result


@st.composite
def layouts(draw: Any, shape: tuple[int, ...]) -> Any:
    """How a view of that shape lies in its memory: order of dims, and steps between elements."""
    order = draw(st.permutations(range(len(shape))))
    steps = draw(st.lists(st.integers(1, 2), min_size=len(shape), max_size=len(shape)))
    return tuple(order), tuple(steps)


def laid_out(torch: Any, array: Array, layout: tuple[tuple[int, ...], tuple[int, ...]]) -> Any:
    """Return a tensor with these elements that is a permuted, stepped view of a larger one."""
    order, steps = layout
    padded = np.zeros(tuple(array.shape[dim] * steps[dim] for dim in order), dtype=array.dtype)
    padded[tuple(slice(None, None, steps[dim]) for dim in order)] = array.transpose(order)
    tensor = torch.from_numpy(padded)[tuple(slice(None, None, steps[dim]) for dim in order)]
    back = tuple(order.index(dim) for dim in range(len(order)))
    return tensor.permute(back) if back else tensor
