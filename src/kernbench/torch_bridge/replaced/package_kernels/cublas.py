"""cuBLASLt as Triton's tutorials call it, to compare their kernels with: products of PyTorch.

The library is opened when a program makes a ``CublasLt``, and a machine without a GPU has none.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor, addmm, mm

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.triton_backend import products_library


def install(patches: Patches) -> None:
    """Let programs make a ``CublasLt`` whose products run on simulated devices."""
    library = products_library()
    if library is not None:
        patches.set(library, "CublasLt", SimulatedCublasLt)


class SimulatedCublasLt:
    """Triton's ``CublasLt``; the second operand of its products has the shape ``(n, k)``."""

    def __init__(self, workspace: Any) -> None:
        """``workspace`` is the memory that the library's own kernels would use."""

    def matmul(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Write the product of ``a`` and ``b`` transposed into ``out``."""
        mm(a, b.t(), out=out)

    def gemm(
        self, a: Tensor, b: Tensor, added: Tensor, out: Tensor, alpha: float, beta: float
    ) -> None:
        """Write ``alpha`` times the product plus ``beta * added`` into ``out``."""
        addmm(added, a, b.t(), alpha=alpha, beta=beta, out=out)

    def block_scaled_matmul_mxfp8(self, *args: object) -> NoReturn:
        """Refuse: no product of the bridge takes scales of blocks."""
        _refuse("block_scaled_matmul_mxfp8")

    def block_scaled_matmul_nvfp4(self, *args: object) -> NoReturn:
        """Refuse: no product of the bridge takes scales of blocks."""
        _refuse("block_scaled_matmul_nvfp4")


def _refuse(name: str) -> NoReturn:
    raise UnsupportedTorchError(
        f"CublasLt.{name}: simulated devices have cuBLASLt's products without scales of blocks; "
        "compare with torch._scaled_mm, or leave that comparison out"
    )
