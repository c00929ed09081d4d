"""Question: what does a user pay for a kernel with data, beside numpy doing the same work?

Each case runs a whole host function alternately with numpy's in one process, BLAS on one thread,
and prints the ratio of the best CPU times. What is timed on our side is everything that a warm call
costs: the allocation of its results, Triton's launch, the timing phase, and the replay of the data
(shown apart as well). The goals are those of the kernels' tutorials, against numpy; a first call
in this process, which also traces and compiles, is printed beside it.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from time import process_time
from typing import Any

import inductor_kernels as inductor
import numpy as np
import pytest
import tutorial_calls as calls

import kernbench
from conftest import Goal

RNG = np.random.default_rng(0)
Array = np.ndarray[Any, Any]
Work = Callable[[], Any]


def compare(
    name: str, torch: Any, ours: Work, numpy: Work, close: Callable[[Any, Any], None]
) -> float:
    """Return the cost of ``ours``, data included, over that of ``numpy``."""

    def replayed() -> tuple[float, float]:
        start = process_time()
        result.append(ours())
        torch.ahbm.synchronize()
        launched = process_time()
        torch.run.replay_queue.drain()
        return launched - start, process_time() - launched

    result: list[Any] = []
    cold = sum(replayed())
    close(result.pop(), numpy())
    with_kernbench, with_numpy = [], []
    deadline = process_time() + 2
    while process_time() < deadline or len(with_numpy) < 5:
        with_kernbench.append(replayed())
        result.clear()
        start = process_time()
        expected = numpy()
        with_numpy.append(process_time() - start)
        del expected
    whole, theirs = min(map(sum, with_kernbench)), min(with_numpy)
    launch, replay = (min(pair) for pair in zip(*with_kernbench, strict=True))
    print(
        f"\n  {name}: {whole * 1e3:.3f} ms (launch {launch * 1e3:.3f}, replay {replay * 1e3:.3f}), "
        f"numpy {theirs * 1e3:.3f} ms, ratio {whole / theirs:.2f}; first call {cold * 1e3:.0f} ms"
    )
    return whole / theirs


@pytest.fixture
def torch() -> Any:
    with kernbench.RuntimeContext(machine="ahbm", ranks=1, data=True) as context:
        yield context


def random(*shape: int, dtype: Any = np.float32) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def close_to(rtol: float, atol: float = 0) -> Callable[[Any, Any], None]:
    def close(out: Any, expected: Any) -> None:
        pairs = zip(out, expected, strict=True) if isinstance(out, tuple) else [(out, expected)]
        for result, wanted in pairs:
            np.testing.assert_allclose(result.numpy(), wanted, rtol=rtol, atol=atol)

    return close


def test_vector_add(torch: Any, goal: Goal) -> None:
    x, y = random(1 << 20), random(1 << 20)
    args = torch.from_numpy(x), torch.from_numpy(y)
    ratio = compare(
        "vector add 1M f32", torch, lambda: calls.add(torch, *args), lambda: x + y, close_to(0)
    )
    goal("vector add 1M f32, whole call over numpy", ratio, 5, "x")


def inductor_cases(torch: Any) -> dict[str, tuple[Work, Work]]:
    """Kernels as PyTorch's compiler writes them, beside numpy doing the same work."""
    x, y, bias = random(4096, 1024), random(4096, 1024), random(1024)
    wide, weight, heads = random(1024, 4096), random(4096), random(4, 1024, 12, 64)
    on = torch.from_numpy
    device = [on(item) for item in (x, y, bias, wide, weight, heads)]

    def softmax() -> Array:
        powers = np.exp(x - x.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def norm() -> Array:
        mean = (wide * wide).mean(axis=1, keepdims=True)
        return wide * (1 / np.sqrt(mean + np.float32(1e-5))) * weight

    return {
        "pointwise": (
            lambda: inductor.gated(torch, device[0], device[2], device[1]),
            lambda: (x + bias) / (1 + np.exp(-(x + bias))) * y,
        ),
        "persistent reduction": (lambda: inductor.softmax(torch, device[0]), softmax),
        "looped reduction": (lambda: inductor.rms_norm(torch, device[3], device[4]), norm),
        "transposition": (
            lambda: inductor.heads_first(torch, device[5]),
            lambda: np.ascontiguousarray(heads.transpose(0, 2, 1, 3)),
        ),
    }


@pytest.mark.parametrize(
    "what", ["pointwise", "persistent reduction", "looped reduction", "transposition"]
)
def test_inductor(torch: Any, goal: Goal, what: str) -> None:
    ours, numpy = inductor_cases(torch)[what]
    ratio = compare(what, torch, ours, numpy, close_to(1e-4, 1e-5))
    goal(f"Inductor's {what} of 4M f32, whole call over numpy", ratio, 2, "x")


def test_softmax(torch: Any, goal: Goal) -> None:
    x = random(4096, 1024)
    on_device = torch.from_numpy(x)

    def numpy() -> Array:
        powers = np.exp(x - x.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    ratio = compare(
        "softmax 4096 x 1024 f32",
        torch,
        lambda: calls.softmax(torch, on_device),
        numpy,
        close_to(1e-5),
    )
    goal("softmax 4096 x 1024 f32, whole call over numpy", ratio, 3, "x")


@pytest.mark.parametrize("persistent", [False, True], ids=["tutorial", "persistent"])
def test_matmul(torch: Any, goal: Goal, persistent: bool) -> None:
    a, b = (random(1024, 1024, dtype=np.float16) for _ in range(2))
    args = torch.from_numpy(a), torch.from_numpy(b)

    def numpy() -> Array:
        return (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)

    name = f"{'persistent ' if persistent else ''}matmul f16 1024^3"
    ratio = compare(
        name,
        torch,
        lambda: calls.product(torch, *args, persistent=persistent),
        numpy,
        close_to(2e-3, 0.05),
    )
    goal(f"{name}, whole call over numpy", ratio, 1.5, "x")


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_attention(torch: Any, goal: Goal, causal: bool) -> None:
    shape = (4, 8, 512, 64)
    q, k, v = (random(*shape, dtype=np.float16) for _ in range(3))
    on_device = [torch.from_numpy(item) for item in (q, k, v)]
    scale = np.float32(shape[-1] ** -0.5)
    hidden = np.triu(np.full((shape[2], shape[2]), -np.inf, np.float32), 1)

    def numpy() -> Array:
        wide_q, wide_k, wide_v = (item.astype(np.float32) for item in (q, k, v))
        scores = wide_q @ wide_k.swapaxes(-1, -2) * scale
        if causal:
            scores += hidden
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        powers /= powers.sum(axis=-1, keepdims=True)
        return (powers @ wide_v).astype(np.float16)

    name = f"attention f16 Z=4 H=8 N=512 D=64{' causal' if causal else ''}"
    ratio = compare(
        name,
        torch,
        lambda: calls.attend(torch, *on_device, causal=causal),
        numpy,
        close_to(1e-2, 1e-2),
    )
    goal(f"{name}, whole call over numpy", ratio, 4, "x")


@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [
        (1024, 1024, "float32"),
        (4096, 1024, "float16"),
        (4096, 8192, "float16"),
        (1151, 8192, "float16"),
    ],
)
def test_layer_norm_backward(torch: Any, goal: Goal, rows: int, columns: int, dtype: str) -> None:
    x, dy = random(rows, columns, dtype=dtype), random(rows, columns, dtype=dtype)
    w = random(columns, dtype=dtype)
    wide = x.astype(np.float32)
    mean, rstd = wide.mean(axis=1), 1 / np.sqrt(wide.var(axis=1) + 1e-5)
    on_device = [torch.from_numpy(item) for item in (dy, x, w, mean, rstd)]

    def numpy() -> tuple[Array, Array, Array]:
        wide_x, wide_dy, wide_w = (item.astype(np.float32) for item in (x, dy, w))
        normed = (wide_x - mean[:, None]) * rstd[:, None]
        scaled = wide_w * wide_dy
        c1 = (normed * scaled).sum(axis=1, keepdims=True) / np.float32(columns)
        c2 = scaled.sum(axis=1, keepdims=True) / np.float32(columns)
        dx = (scaled - (normed * c1 + c2)) * rstd[:, None]
        dw, db = (wide_dy * normed).sum(axis=0), wide_dy.sum(axis=0)
        return dx.astype(dtype), dw.astype(dtype), db.astype(dtype)

    name = f"layer norm backward {dtype} {rows} x {columns}"
    ratio = compare(
        name, torch, lambda: calls.norm_backward(torch, *on_device), numpy, close_to(1e-2, 0.5)
    )
    goal(f"{name}, whole call over numpy", ratio, 20, "x")
