"""Factorizations go column by column: each column waits for what the one before has changed.

That, not bytes or arithmetic, is their time for matrices of a few thousand rows
(docs/model/norms-and-reductions.md). Matrices of a batch go side by side. Numbers of operations are
those of LAPACK's algorithms.

Source: Golub and Van Loan, "Matrix Computations", fourth edition, algorithms 3.2.1, 4.2.1, 5.2.1,
5.4.2 and 8.3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from kernbench.hardware import SipSpec
from kernbench.torch_bridge.base.operation_timing import OperationTiming
from kernbench.torch_bridge.costs.by_bytes import BY_BYTES_ALONE, timing_by_bytes
from kernbench.torch_bridge.costs.operations import OperationCosts
from kernbench.torch_bridge.costs.registry import Family, OperationCall
from kernbench.torch_bridge.costs.tensor_bytes import num_bytes

_STEP_CYCLES = 1200
"""From one step that depends on another to the next: a launch inside a library's loop, or a barrier
of a grid, and the latency of the cache. Fitted to ``torch.linalg.cholesky`` of 128 to 2048 rows on
H100 (PyTorch, pull request 173515: 109, 376 and 1954 us) and of 512 to 4096 on L40S (MLX, pull
request 4262: 186, 951 and 2366 us), which ask for 900 to 1600."""


@dataclass(frozen=True, slots=True)
class Factorization:
    """The steps for each column of a matrix, and the arithmetic of all of it."""

    steps: int
    flops: Callable[[float, float], float]
    """FLOPs for a matrix by rows and columns, with at least as many rows as columns."""
    is_bound: bool = False
    """Whether its time is a lower bound: it iterates, as often as its matrix asks for."""

    def waits_ps(self, matrix: Tensor, sip: SipSpec) -> int:
        """Return how long it takes for a matrix, or for a batch of them."""
        rows, columns = sorted(matrix.shape[-2:], reverse=True)
        if not matrix.numel():
            return 0
        real = matrix.dtype.to_real() if matrix.dtype.is_complex else matrix.dtype
        rates = sip.pe.gemm.flops_per_clock
        # Of what no machine describes, as of float32 at least.
        rate = rates.get(str(real).removeprefix("torch.")) or rates["float32"]
        of_each = self.flops(rows, columns) * (4 if matrix.dtype.is_complex else 1)
        flops = of_each * (matrix.numel() // (rows * columns))
        cycles = self.steps * columns * _STEP_CYCLES + flops / (rate * sip.num_pes)
        return sip.cycles_ps(round(cycles))


def _of_qr(rows: float, columns: float) -> float:
    return 2 * rows * columns**2 - 2 * columns**3 / 3


# The pivot, the exchange of rows, the update.
_LU = Factorization(3, lambda rows, columns: rows * columns**2 - columns**3 / 3)
# The norm of the column, the reflection, its product with the columns behind it, their update.
_REFLECTIONS = Factorization(4, _of_qr)
# Each reflection's product with the columns that are there, and their update.
_PRODUCT = Factorization(2, _of_qr)
_BOTH = Factorization(6, lambda rows, columns: 2 * _of_qr(rows, columns))
# An inverse is the solution for the unit matrix.
_INVERSE = Factorization(3, lambda rows, columns: 2 * rows**3)
# To a tridiagonal matrix, its eigenvalues, and the vectors of the matrix from its own.
_EIGENVALUES = Factorization(4, lambda rows, columns: 14 / 3 * rows**3, is_bound=True)
# To a bidiagonal matrix, from both sides, and the vectors of both.
_SINGULAR = Factorization(8, lambda rows, columns: 4 * _of_qr(rows, columns), is_bound=True)
# To a Hessenberg matrix, and its shape by Schur.
_GENERAL = Factorization(8, lambda rows, columns: 25 * rows**3, is_bound=True)

_BY_NAME = {
    "aten.linalg_cholesky_ex": Factorization(1, lambda rows, columns: columns**3 / 3),
    "aten.linalg_lu_factor_ex": _LU,
    "aten.linalg_lu": _LU,
    "aten._linalg_solve_ex": _LU,
    "aten._linalg_det": _LU,
    "aten._linalg_slogdet": _LU,
    "aten.linalg_inv_ex": _INVERSE,
    "aten.geqrf": _REFLECTIONS,
    "aten.linalg_householder_product": _PRODUCT,
    "aten.linalg_qr": _BOTH,
    "aten._linalg_eigh": _EIGENVALUES,
    "aten._linalg_svd": _SINGULAR,
    "aten.linalg_eig": _GENERAL,
}
_WITHOUT_PRODUCT = "r"
"""The mode of ``linalg_qr`` that leaves the product of the reflections out."""


class _Steps(NamedTuple):
    read: int
    written: int
    waits_ps: int


def _key(costs: OperationCosts, call: OperationCall) -> _Steps:
    reflections = _BY_NAME[call.name]
    if reflections is _BOTH and call.args[1:2] == (_WITHOUT_PRODUCT,):
        reflections = _REFLECTIONS
    if reflections.is_bound:
        costs.bounded.add(call.name)
    waits_ps = reflections.waits_ps(call.args[0], costs.machine.sip_at(call.sip_id))
    return _Steps(num_bytes(call.args), num_bytes((call.result,)), waits_ps)


def _kernels(costs: OperationCosts, name: str, steps: _Steps, sip_id: int) -> OperationTiming:
    sip = costs.machine.sip_at(sip_id)
    # Nobody has published the error of factorizations.
    return timing_by_bytes(
        name, sip, steps.read, steps.written, chain_ps=steps.waits_ps, family=BY_BYTES_ALONE
    )


FAMILY = Family(
    matches=lambda func: str(func._overloadpacket) in _BY_NAME, key=_key, kernels=_kernels
)
