from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench import ops
from kernbench.errors import UsageError
from tests.ops.arrays import FLOATS, assert_close, values


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(5, 20), (2, 3, 1500)])
def test_the_pieces_of_two_halves_of_a_vocabulary_make_the_loss(
    torch: Any, dtype: str, shape: tuple[int, ...]
) -> None:
    logits = values(shape, dtype)
    half = shape[-1] // 2
    target = np.random.default_rng(0).integers(0, shape[-1], shape[:-1])
    x, t = torch.from_numpy(logits), torch.from_numpy(target)
    parts = [(x[..., :half], 0), (x[..., half:], half)]

    largest = np.maximum(*(ops.row_max(part).numpy() for part, _ in parts))
    m = torch.from_numpy(largest)
    total = sum(ops.exp_sum(part, m).numpy() for part, _ in parts)
    chosen = sum(ops.gather_target(part, t, start).numpy() for part, start in parts)

    wide = logits.astype(np.float64)
    np.testing.assert_array_equal(largest, wide.max(-1))
    np.testing.assert_array_equal(chosen, np.take_along_axis(wide, target[..., None], -1)[..., 0])
    powers = np.exp(wide - wide.max(-1, keepdims=True))
    np.testing.assert_allclose(total, powers.sum(-1), rtol=1e-5)

    grad = values(shape[:-1], "float32", 3)
    s, g = torch.from_numpy(np.asarray(total, np.float32)), torch.from_numpy(grad)
    one_hot = np.arange(shape[-1]) == target[..., None]
    expected = (powers / powers.sum(-1, keepdims=True) - one_hot) * grad[..., None]
    for (part, start), piece in zip(parts, (slice(half), slice(half, None)), strict=True):
        result = ops.cross_entropy_backward(part, m, s, g, t, start)
        assert_close(result, expected[..., piece], dtype, scale=4)


def test_what_is_not_one_value_per_row_is_refused(torch: Any) -> None:
    logits = torch.zeros(4, 6)
    with pytest.raises(UsageError, match=r"row_max must be one value per row.*shape \(4,\)"):
        ops.exp_sum(logits, torch.zeros(3))
    with pytest.raises(UsageError, match=r"target must be one value per row.*torch\.float32"):
        ops.gather_target(logits, torch.zeros(4))
    rows, target = torch.zeros(4), torch.zeros(4, dtype="i64")
    with pytest.raises(UsageError, match="grad must be one value per row"):
        ops.cross_entropy_backward(logits, rows, rows, torch.zeros(4, 6), target)
