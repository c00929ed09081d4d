"""Factorizations of matrices take the time of their columns, not of their bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.hardware import load_machine  # noqa: E402
from kernbench.op_log import Template  # noqa: E402
from kernbench.torch_bridge.base.operations import describe  # noqa: E402
from kernbench.torch_bridge.costs import OperationCosts  # noqa: E402
from kernbench.torch_bridge.processes.float32 import Float32  # noqa: E402

aten = torch.ops.aten
CHOLESKY, QR = aten.linalg_cholesky_ex.default, aten.linalg_qr.default
MEASURED_US = [
    # PyTorch, pull request 173515: one matrix each, of float32.
    ("h100-sxm", CHOLESKY, (128, 128), 108.6),
    ("h100-sxm", CHOLESKY, (512, 512), 376.1),
    ("h100-sxm", CHOLESKY, (2048, 2048), 1954.3),
    # MLX, pull request 4262.
    ("l40s", CHOLESKY, (512, 512), 186),
    ("l40s", CHOLESKY, (2048, 2048), 951),
    ("l40s", CHOLESKY, (4096, 4096), 2366),
    # PyTorch, pull request 173788, never fitted to.
    ("h100-sxm", QR, (16, 16), 60.0),
    ("h100-sxm", QR, (128, 32), 189.0),
]


def template(machine: str, func: Callable[..., Any], *shape: int, dtype: Any = None) -> Template:
    matrix = torch.empty(shape, dtype=dtype, device="meta")
    costs = OperationCosts(load_machine(machine, 1), Float32())
    timing = costs.timing(func, describe(func), (matrix,), {}, func(matrix), 0)
    assert not costs.unknown
    return timing.template(False)


@pytest.mark.parametrize(("machine", "func", "shape", "measured_us"), MEASURED_US)
def test_a_factorization_takes_about_what_was_measured(
    machine: str, func: Callable[..., Any], shape: tuple[int, int], measured_us: float
) -> None:
    found_us = template(machine, func, *shape).duration_ps / 1e6
    assert measured_us / 1.6 < found_us < measured_us * 1.6


def test_a_large_matrix_takes_its_arithmetic_too() -> None:
    """Closed form: a third of the cube, by the rate of float32, behind the columns' steps."""
    n, sip = 1 << 15, load_machine("h100-sxm", 1).sip
    result = template("h100-sxm", CHOLESKY, n, n)
    rate = sip.pe.gemm.flops_per_clock["float32"] * sip.num_pes
    arithmetic_ps = sip.cycles_ps(round(n**3 / 3 / rate))
    of_columns_ps = n * template("h100-sxm", CHOLESKY, 256, 256).duration_ps / 256
    assert result.duration_ps == pytest.approx(arithmetic_ps + of_columns_ps, rel=0.05)
    complex_ps = template("h100-sxm", CHOLESKY, n, n, dtype=torch.complex64).duration_ps
    assert complex_ps - result.duration_ps == pytest.approx(3 * arithmetic_ps, rel=0.01)


def test_iterations_that_depend_on_numbers_are_listed_as_bounds() -> None:
    machine = load_machine("h100-sxm", 1)
    costs = OperationCosts(machine, Float32())
    func, matrix = aten._linalg_eigh.default, torch.empty(64, 64, device="meta")
    costs.timing(func, describe(func), (matrix,), {}, func(matrix), 0)
    assert costs.bounded == {"aten._linalg_eigh"}
    assert not costs.unknown


def test_nobody_has_published_the_error_of_factorizations() -> None:
    assert template("h100-sxm", CHOLESKY, 64, 64).family == ""
    assert template("h100-sxm", aten.relu.default, 64, 64).family == "membound"
