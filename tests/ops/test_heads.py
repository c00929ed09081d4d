"""Heads out of a fused projection and back, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench import ops
from kernbench.errors import UsageError
from tests.ops.arrays import Array

BATCH, SEQ, HEADS, KEY_HEADS, WIDTH = 2, 5, 4, 2, 16
FEATURES = (HEADS + 2 * KEY_HEADS) * WIDTH


def rotated(x_BSHD: Array, cos: Array, sin: Array) -> Array:
    first, second = np.split(x_BSHD, 2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def tables(positions: int) -> tuple[Array, Array]:
    rates = 10000.0 ** (-np.arange(WIDTH // 2) * 2 / WIDTH)
    angles = np.arange(positions)[:, None] * rates
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_heads_are_split_and_joined(torch: Any, rotate: bool, biased: bool) -> None:
    rng = np.random.default_rng(0)
    fused = rng.standard_normal((BATCH * SEQ, FEATURES)).astype(np.float32)
    bias = rng.standard_normal(FEATURES).astype(np.float32) if biased else None
    cos, sin = tables(12)
    position = 4
    cache = torch.zeros(2, BATCH, KEY_HEADS, 12, WIDTH)
    k, v = (cache[index, :, :, position : position + SEQ] for index in range(2))
    q = torch.empty(BATCH, SEQ, HEADS, WIDTH).transpose(1, 2)
    x = torch.from_numpy(fused)
    rotary = (torch.from_numpy(cos), torch.from_numpy(sin)) if rotate else None
    options: dict[str, Any] = {"rotary": rotary, "position": position}
    added = None if bias is None else torch.from_numpy(bias)
    ops.split_heads(x, q, k, v, bias_E=added, **options)

    wide = (fused + (0 if bias is None else bias)).reshape(BATCH, SEQ, -1, WIDTH)
    parts = np.split(wide, [HEADS, HEADS + KEY_HEADS], axis=2)
    if rotate:
        span = slice(position, position + SEQ)
        parts[:2] = [rotated(part, cos[span], sin[span]) for part in parts[:2]]
    for actual, expected in zip((q, k, v), parts, strict=True):
        np.testing.assert_allclose(actual.numpy().swapaxes(1, 2), expected, rtol=1e-5, atol=1e-5)
    assert not cache[:, :, :, :position].numpy().any()

    back = torch.empty(BATCH * SEQ, FEATURES)
    ops.join_heads(q, k, v, back, **options)
    np.testing.assert_allclose(back.numpy(), wide.reshape(BATCH * SEQ, -1), rtol=1e-5, atol=1e-5)


def test_what_does_not_fit_is_refused(torch: Any) -> None:
    x = torch.zeros(BATCH * SEQ, FEATURES)
    q = torch.zeros(BATCH, HEADS, SEQ, WIDTH)
    k = torch.zeros(BATCH, KEY_HEADS, SEQ, WIDTH)
    with pytest.raises(UsageError, match="q, k and v must be"):
        ops.split_heads(x, q, k, k[:, :, 1:])
    with pytest.raises(UsageError, match=r"make \(10, 128\) of \(tokens, features\)"):
        ops.split_heads(x[1:], q, k, k)
    with pytest.raises(UsageError, match="must have one dtype and consecutive elements"):
        ops.split_heads(x, q, k, k.to(torch.float16))
    with pytest.raises(UsageError, match=r"bias must be contiguous, of shape \(128,\)"):
        ops.split_heads(x, q, k, k, bias_E=torch.zeros(4))
    with pytest.raises(UsageError, match="position must be 0 or more"):
        ops.split_heads(x, q, k, k, position=-1)
    table = torch.zeros(6, WIDTH // 2)
    with pytest.raises(UsageError, match="at least 7 positions"):
        ops.join_heads(q, k, k, x, rotary=(table, table), position=2)
