"""Plain products of one row: what they give, and which kernel they take."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from kernbench import ops
from kernbench.dtypes import float16
from kernbench.hardware import load_machine
from kernbench.ops.products import gemm
from kernbench.plans import GemmTuner, Problem
from kernbench.plans.tiles import tiles
from kernbench.runtime_api import RuntimeContext
from tests.ops.arrays import assert_close, values
from tests.tiers import daily

A100 = load_machine("a100-sxm-80g", 1)


def duration_us(machine: Any, call: Callable[[Any], Any]) -> float:
    """Return the modeled time of a call's only kernel, on an idle device."""
    with RuntimeContext(machine=machine, ranks=1, data=False) as torch:
        call(torch)
        torch.ahbm.synchronize()
        (result,) = (
            instance for instance in torch.op_log.instances if instance.template.kind == "kernel"
        )
        return float(result.template.duration_ps / 1e6)


def product(m: int, n: int, k: int) -> Callable[[Any], Any]:
    def call(torch: Any) -> Any:
        return ops.matmul(
            torch.empty((m, k), dtype="float16"), torch.empty((k, n), dtype="float16")
        )

    return call


@pytest.mark.parametrize(("n", "k"), [(256, 256), (1024, 4096), (4096, 2048)])
def test_a_row_takes_the_vector_tile_that_the_tuner_finds_fastest(n: int, k: int) -> None:
    tuner, problem = GemmTuner(), Problem(1, n, k, float16)
    vectors = [tile for tile in tiles(problem, A100.sip) if tile.is_vector]
    fastest_us = min(tuner.time_ps(problem, tile, A100) for tile in vectors) / 1e6
    one, two = (duration_us(A100, product(m, n, k)) for m in (1, 2))
    assert one == fastest_us
    # Two rows have the matrix tile that one row had too.
    assert one < 0.9 * two


def test_engines_that_read_shared_memory_and_batches_keep_the_matrix_kernel() -> None:
    machine = load_machine("h100-sxm", 1)
    one, two = (duration_us(machine, product(m, 512, 512)) for m in (1, 2))
    assert one == pytest.approx(two, rel=0.02)

    def batch(torch: Any, rows: int) -> Any:
        a, b = (
            torch.empty((2, rows, 512), dtype="float16"),
            torch.empty((2, 512, 512), dtype="float16"),
        )
        return ops.matmul(a, b)

    one, two = (duration_us(A100, partial(batch, rows=m)) for m in (1, 2))
    assert one == pytest.approx(two, rel=0.02)


def test_a_row_is_timed_once_per_shape_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[Any] = []
    module: Any = gemm
    duration_ps = module.kernel_duration_ps

    def counted(trace: Any, machine: Any, sip_id: int) -> int:
        timed.append(machine)
        return duration_ps(trace, machine, sip_id)

    monkeypatch.setattr(gemm, "kernel_duration_ps", counted)
    first, second = (load_machine("a100-sxm-80g", 1) for _ in range(2))
    call = product(1, 272, 320)
    for _ in range(3):
        duration_us(first, call)
    once = len(timed)
    assert once > 1
    duration_us(first, call)
    assert len(timed) == once
    duration_us(second, call)
    assert timed[once:] == [second] * once


@pytest.mark.parametrize(
    "case",
    daily(
        ("float16", "silu"),
        ("bfloat16", "relu"),
        ("float32", None),
        of=itertools.product(("float16", "bfloat16", "float32", "float64"), (None, "relu", "silu")),
    ),
    ids=str,
)
def test_a_row_has_its_bias_and_activation(case: tuple[str, str | None]) -> None:
    dtype, activation = case
    n, k = 200, 300
    x, weight, bias = values((1, k), dtype), values((n, k), dtype, 1), values((n,), dtype, 2)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T + bias.astype(np.float64)
    if activation == "relu":
        exact = np.maximum(exact, 0)
    elif activation == "silu":
        exact = exact / (1 + np.exp(-exact))
    with RuntimeContext(machine=A100, ranks=1) as torch:
        tensors = [torch.from_numpy(item) for item in (x, weight, bias)]
        assert_close(
            ops.linear(tensors[0], tensors[1], tensors[2], activation=activation),
            exact,
            dtype,
            scale=4 * k,
        )
        vector = ops.matmul(tensors[0][0], tensors[1].T)
        assert vector.shape == (n,)
        assert_close(vector, x[0].astype(np.float64) @ weight.astype(np.float64).T, dtype, 4 * k)
