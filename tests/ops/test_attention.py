"""Attention against numpy in float64, forward and backward, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench import ops
from kernbench.errors import UsageError
from kernbench.hardware import load_machine
from kernbench.runtime_api import RuntimeContext
from tests.ops.arrays import Array, numpy_dtype
from tests.tiers import daily, examples


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sizes: batch, query and key heads, queries, keys, head size; and the options."""

    sizes: tuple[int, int, int, int, int, int]
    causal: bool = False
    offset: int | None = None
    mask: tuple[int, int] | None = None
    """Sizes of the mask's batch and head dim."""
    splits: int | None = None


CASES = [
    Case(sizes=(2, 4, 4, 100, 100, 64), causal=True),
    Case(sizes=(1, 4, 2, 1, 300, 64)),
    Case(sizes=(2, 8, 2, 3, 70, 80), causal=True, mask=(2, 1)),
    Case(sizes=(1, 2, 2, 130, 257, 32), causal=True, offset=0),
    Case(sizes=(1, 2, 1, 200, 100, 16), causal=True),
    Case(sizes=(2, 6, 3, 40, 33, 24), mask=(1, 6)),
    Case(sizes=(1, 4, 1, 2, 1000, 64), causal=True, splits=4),
]


def softmax_weights(case: Case, q: Array, k: Array, mask: Array | None) -> Array:
    """Return the matrix of weights, rows that see no key being 0."""
    _, heads, key_heads, queries, keys, width = case.sizes
    scores = q @ np.repeat(k, heads // key_heads, 1).swapaxes(-1, -2) / width**0.5
    if mask is not None:
        scores = scores + mask
    if case.causal:
        first = keys - queries if case.offset is None else case.offset
        visible = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + first
        scores = np.where(visible, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = powers.sum(-1, keepdims=True)
    weights: Array = powers / np.where(total == 0, 1, total)
    return weights


def reference(case: Case, arrays: list[Array], mask: Array | None) -> list[Array]:
    """Return the output and the gradients of q, k and v."""
    q, k, v, grad = (item.astype(np.float64) for item in arrays)
    batch, heads, key_heads, _, keys, width = case.sizes
    wide_k, wide_v = (np.repeat(item, heads // key_heads, 1) for item in (k, v))
    weights = softmax_weights(case, q, k, mask)
    out = weights @ wide_v
    slope = weights * (grad @ wide_v.swapaxes(-1, -2) - (grad * out).sum(-1, keepdims=True))
    shared = (batch, key_heads, heads // key_heads, keys, width)
    return [
        out,
        slope @ wide_k / width**0.5,
        (slope.swapaxes(-1, -2) @ q / width**0.5).reshape(shared).sum(2),
        (weights.swapaxes(-1, -2) @ grad).reshape(shared).sum(2),
    ]


def inputs(case: Case, dtype: str) -> tuple[list[Array], Array | None]:
    batch, heads, key_heads, queries, keys, width = case.sizes
    rng = np.random.default_rng(list(case.sizes))
    shapes = [(batch, heads, queries, width), *[(batch, key_heads, keys, width)] * 2]
    shapes.append(shapes[0])
    arrays = [rng.standard_normal(shape).astype(numpy_dtype(dtype)) for shape in shapes]
    if case.mask is None:
        return arrays, None
    return arrays, rng.standard_normal((*case.mask, queries, keys)).astype(np.float32)


@pytest.mark.adr("0014-D5")
@pytest.mark.parametrize("case", daily(CASES[2], CASES[6], of=CASES), ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_attention_and_its_gradients(torch: Any, case: Case, dtype: str) -> None:
    arrays, mask = inputs(case, dtype)
    q, k, v, grad = map(torch.from_numpy, arrays)
    options: dict[str, Any] = {
        "causal": case.causal,
        "query_offset": case.offset,
        "mask": None if mask is None else torch.from_numpy(mask),
    }
    out, lse = ops.attention_with_lse(q, k, v, num_splits=case.splits, **options)
    result = [out, *ops.attention_backward(grad, q, k, v, out, lse, **options)]
    # Weights and gradients are rounded to half precision before the second product.
    tolerance = {"float32": 2e-5, "float16": 2e-2}[dtype]
    for actual, expected in zip(result, reference(case, arrays, mask), strict=True):
        np.testing.assert_allclose(
            actual.numpy().astype(np.float64), expected, rtol=tolerance, atol=tolerance
        )


@examples(15)
@given(
    heads=st.sampled_from([(1, 1), (2, 1), (6, 3)]),
    queries=st.integers(1, 20),
    keys=st.integers(1, 40),
    causal=st.booleans(),
    splits=st.integers(1, 3),
)
def test_the_result_does_not_depend_on_how_keys_are_split(
    torch: Any, heads: tuple[int, int], queries: int, keys: int, causal: bool, splits: int
) -> None:
    case = Case(sizes=(1, *heads, queries, keys, 16), causal=causal)
    arrays, _ = inputs(case, "float32")
    q, k, v = map(torch.from_numpy, arrays[:3])
    result = ops.attention(q, k, v, causal=causal, num_splits=splits).numpy()
    np.testing.assert_allclose(result, reference(case, arrays, None)[0], rtol=1e-5, atol=1e-5)


def test_views_are_read_and_written_through_their_strides(torch: Any) -> None:
    rng = np.random.default_rng(0)
    array = rng.standard_normal((2, 30, 3, 4, 16)).astype(np.float32)
    q, k, v = (torch.from_numpy(array)[:, :, index].transpose(1, 2) for index in range(3))
    out = torch.empty(2, 30, 4, 16)
    ops.attention(q, k, v, causal=True, out=out.transpose(1, 2))
    case = Case(sizes=(2, 4, 4, 30, 30, 16), causal=True)
    parts = [array[:, :, number].swapaxes(1, 2) for number in (0, 1, 2, 0)]
    np.testing.assert_allclose(
        out.numpy().swapaxes(1, 2), reference(case, parts, None)[0], rtol=1e-5, atol=1e-5
    )


def test_what_does_not_fit_is_refused(torch: Any) -> None:
    q, k = torch.zeros(1, 4, 8, 16), torch.zeros(1, 2, 8, 16)
    with pytest.raises(UsageError, match="q of 4 dims"):
        ops.attention(q[0], k, k)
    with pytest.raises(UsageError, match=r"heads \(4\) must be a multiple of the key heads \(3\)"):
        ops.attention(q, torch.zeros(1, 3, 8, 16), torch.zeros(1, 3, 8, 16))
    with pytest.raises(UsageError, match="k and v must have one shape"):
        ops.attention(q, k, k[:, :, 1:])
    with pytest.raises(UsageError, match="equal dtypes"):
        ops.attention(q, k.to(torch.float16), k)
    with pytest.raises(UsageError, match=r"mask of shape \(3, 8\) does not broadcast"):
        ops.attention(q, k, k, mask=torch.zeros(3, 8))
    with pytest.raises(UsageError, match="num_splits must be at least 1"):
        ops.attention(q, k, k, num_splits=0)
    with pytest.raises(UsageError, match="the last dim of out"):
        ops.attention(q, k, k, out=torch.zeros(1, 4, 16, 8).transpose(2, 3))
    out, lse = ops.attention_with_lse(q, k, k)
    with pytest.raises(UsageError, match="lse must be"):
        ops.attention_backward(q, q, k, k, out, lse[0])
    with pytest.raises(UsageError, match="the gradient must have the shape and dtype of q"):
        ops.attention_backward(q[:, :, 1:], q, k, k, out, lse)


def decode_ps(machine: str, batch: int, heads: int, keys: int) -> int:
    """Return the kernels' time of one token with a cache of ``keys``."""
    with RuntimeContext(machine=machine, ranks=1, data=False) as torch:
        q = torch.empty((batch, heads, 1, 128), dtype="float16")
        k, v = (torch.empty((batch, heads, keys, 128), dtype="float16") for _ in range(2))
        ops.attention(q, k, v)
        torch.ahbm.synchronize()
        return sum(
            instance.template.duration_ps
            for instance in torch.op_log.instances
            if instance.template.kind == "kernel"
        )


@pytest.mark.adr("0014-D5")
def test_decode_takes_the_time_of_reading_the_cache() -> None:
    sip = load_machine("h100-sxm", 1).sip
    times = [decode_ps("h100-sxm", 32, 32, keys) for keys in (512, 1024, 4096, 8192)]
    assert times == sorted(times)
    for keys, time_ps in zip((4096, 8192), times[2:], strict=True):
        least = sip.hbm_stream_ps(2 * 32 * 32 * keys * 128 * 2)
        assert least <= time_ps <= 1.15 * least


@pytest.mark.parametrize("name", ["a100-sxm-80g", "h100-sxm", "h200"])
def test_heads_of_128_elements_fit_into_large_gpus(name: str) -> None:
    case = Case(sizes=(1, 1, 1, 256, 256, 128), causal=True)
    with RuntimeContext(load_machine(name, 1), 1) as torch:
        inputs = [torch.randn(1, 1, 256, 128, dtype="f16") for _ in range(3)]
        result = ops.attention(*inputs, causal=True).numpy()
        arrays = [item.numpy() for item in inputs]
    expected = reference(case, [*arrays, arrays[0]], None)[0]
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=2e-3, atol=2e-3)
