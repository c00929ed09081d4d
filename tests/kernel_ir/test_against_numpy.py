"""Whole kernels: TTIR text, evaluated and replayed, against numpy on the same data."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.memory import DeviceMemory
from kernbench.replay import PointerArg, run_kernel
from tests.kernel_ir.cases import VERSIONS, trace
from tests.tiers import examples

Array = npt.NDArray[Any]
QUICK = examples(15)


def run(
    name: str, grid: tuple[int, ...], *arguments: Array | int | float, version: str = "3.9"
) -> list[Array]:
    """Run a kernel on copies of the arrays; return what they hold afterwards."""
    ints = {i: argument for i, argument in enumerate(arguments) if isinstance(argument, int)}
    padded = (*grid, 1, 1)[:3]
    result = trace(name, (padded[0], padded[1], padded[2]), ints, version=version)
    memory = DeviceMemory(0, 1 << 26, has_data=True)
    bound: list[Any] = []
    results: list[Array] = []
    for argument in arguments:
        if not isinstance(argument, np.ndarray):
            bound.append(argument)
            continue
        buffer = memory.allocate(argument.nbytes, "array")
        buffer.bytes[:] = np.ascontiguousarray(argument).reshape(-1).view(np.uint8)
        bound.append(PointerArg(buffer, 0))
        results.append(buffer.bytes.view(argument.dtype).reshape(argument.shape))
    run_kernel(result, bound)
    return results


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["matmul", "persistent", "desc"])
@QUICK
@given(m=st.integers(1, 150), n=st.integers(1, 150), k=st.integers(1, 80))
def test_three_ways_to_write_a_matmul(version: str, name: str, m: int, n: int, k: int) -> None:
    if name == "persistent":
        version = "3.9"
    a, b = normal(m, k).astype(np.float16), normal(k, n, seed=1).astype(np.float16)
    out = np.zeros((m, n), np.float16)
    tiles = (-(-m // 64), -(-n // 64))
    if name == "matmul":
        *_, c = run(name, (tiles[0] * tiles[1],), a, b, out, m, n, k, k, n, n, version=version)
    else:
        grid = (3,) if name == "persistent" else tiles
        *_, c = run(name, grid, a, b, out, m, n, k, version=version)
    exact = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_allclose(c.astype(np.float32), exact, rtol=2e-3, atol=2e-2)


@QUICK
@given(rows=st.integers(1, 20), columns=st.integers(1, 1024), programs=st.integers(1, 5))
def test_softmax(rows: int, columns: int, programs: int) -> None:
    x = normal(rows, columns)
    out, _ = run("softmax", (programs,), x * 0, x, columns, columns, rows, columns)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("length", [16, 64, 100])
def test_causal_attention(version: str, length: int) -> None:
    q, k, v = normal(3, 2, length, 16)
    grid = (-(-length // 16), 2)
    *_, out = run("attn_causal", grid, q, k, v, q * 0, 0.5, length, version=version)
    scores = q @ k.transpose(0, 2, 1) * 0.5
    scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    expected = p / p.sum(axis=-1, keepdims=True) @ v
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("columns", [5, 96, 100])
def test_layer_norm_over_three_loops(columns: int) -> None:
    x, (w, b) = normal(3, columns), normal(2, columns, seed=1)
    zeros = np.zeros(3, np.float32)
    _, y, _, _, mean, rstd = run(
        "layernorm", (3,), x, x * 0, w, b, zeros, zeros, columns, columns, 1e-5
    )
    spread = np.sqrt(x.var(axis=1) + 1e-5)
    expected = (x - x.mean(axis=1)[:, None]) / spread[:, None] * w + b
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(mean, x.mean(axis=1), atol=1e-5)
    np.testing.assert_allclose(rstd, 1 / spread, rtol=1e-5)


@QUICK
@given(height=st.integers(1, 12), width=st.integers(1, 12))
def test_convolution_divides_and_masks_in_both_directions(height: int, width: int) -> None:
    x, w = normal(height, width), normal(9, seed=1)
    grid = (-(-height * width // 32),)
    *_, out = run("conv", grid, x, w, x * 0, height, width, height, width)
    padded = np.pad(x, 1)
    expected = sum(w[t] * padded[t // 3 : t // 3 + height, t % 3 : t % 3 + width] for t in range(9))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_control_flow_that_differs_between_programs() -> None:
    (x,) = run("early", (5,), np.zeros((5, 16), np.float32), 3)
    np.testing.assert_array_equal(x[:, 0], [2, 1, 2, 0, 0])
    a = normal(11, 16)
    *_, out = run("splitk", (2, 4), a, a, np.zeros((2, 4, 16), np.float32), 11)
    for k, scale in enumerate((1, 10, 100, 100)):
        part = a[k * 11 // 4 : (k + 1) * 11 // 4].sum(axis=0) * scale
        np.testing.assert_allclose(out[:, k], [part, part], rtol=1e-4, atol=1e-3)


def test_a_flattened_persistent_loop_resets_its_accumulator() -> None:
    x = normal(11, 3, 16)
    *_, out = run("flatpersist", (4,), x, np.zeros((11, 16), np.float32), 11, 3)
    np.testing.assert_allclose(out, x.sum(axis=1), rtol=1e-5, atol=1e-5)


def test_a_while_loop_with_a_branch_on_its_counter() -> None:
    x = np.arange(1, 9, dtype=np.float32)
    (out,) = run("wh", (1,), x, 5)
    total = 0.0
    for i in range(5):
        total += x[i]
        total = total + 1 if i + 1 == 3 else total * 2
    assert out[0] == total


def test_indices_that_were_loaded() -> None:
    rng = np.random.default_rng(0)
    index, x = rng.integers(0, 10, 16).astype(np.int32), normal(10, 64)
    *_, out = run("gather", (4,), index, x, np.zeros((4, 64), np.float32), 5)
    rows = sum((x[index[i]] for i in range(5) if index[i] > 0), np.zeros(64, np.float32))
    np.testing.assert_allclose(out, x[index[:4]] + rows, rtol=1e-5, atol=1e-5)

    links = rng.permutation(20).astype(np.int32)
    _, path = run("chase", (4,), links, np.zeros((4, 6), np.int32), 6)
    at: Any = np.arange(4)
    for step in range(6):
        np.testing.assert_array_equal(path[:, step], at)
        at = links[at]

    *_, total = run("walk_ptr", (1,), np.array([7], np.int32), x, np.zeros(16, np.float32), 5)
    flat = x.reshape(-1)
    np.testing.assert_allclose(total, sum(flat[7 * i : 7 * i + 16] for i in range(5)), rtol=1e-5)


def test_addresses_that_are_not_separable() -> None:
    x = normal(16, 16)
    _, out = run("swizzle", (1,), x, x * 0, 9)
    rows, columns = np.arange(16)[:, None], np.arange(16)[None]
    expected = np.where(rows + columns < 9, x[rows, rows ^ columns], -1)
    np.testing.assert_array_equal(out, expected)


def test_rotary_halves_swap_by_select() -> None:
    x, (cos, sin) = normal(3, 64), normal(2, 8, seed=1)
    *_, out = run("rope", (3,), x, cos, sin, x * 0)
    halves = x.reshape(3, 4, 2, 8)
    low, high = halves[:, :, 0], halves[:, :, 1]
    expected = np.stack([low * cos - high * sin, high * cos + low * sin], axis=2)
    np.testing.assert_allclose(out, expected.reshape(3, 64), rtol=1e-5, atol=1e-5)


def test_a_strided_copy_by_division_and_remainder() -> None:
    x = normal(10, 60)
    _, out = run("flat", (3,), x, np.zeros((10, 13), np.float32), 10, 13, 60, 3)
    np.testing.assert_array_equal(out, x[:, :39:3])


@pytest.mark.parametrize("version", ["3.6", "3.7", "3.8"])
def test_block_pointers(version: str) -> None:
    x = normal(250, 256)
    _, out = run("blockptr", (4,), x, x * 0, 250, 256, version=version)
    np.testing.assert_array_equal(out, 2 * x)
