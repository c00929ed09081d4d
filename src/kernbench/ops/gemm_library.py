"""Which tile a matrix product takes: one that is good for its sizes, or the choice of a library.

:func:`~kernbench.ops.matmul` has one kernel, whose tile follows from the sizes. A vendor's library
picks among kernels that were tuned for the device. ``use_tiles`` puts such a choice in its place,
for the calling rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernbench.dtypes import DType
from kernbench.errors import UsageError
from kernbench.hardware import SipSpec
from kernbench.ops.gemm_tiles import GemmTile
from kernbench.runtime_api import RuntimeContext, current_context

TileChoice = Callable[[int, int, int, DType, SipSpec], GemmTile]
"""From M, N, K, the dtype and the device to a tile."""


def use_tiles(choose: TileChoice | None, torch: RuntimeContext | None = None) -> None:
    """Let ``choose`` pick the tiles of the calling rank's matrix products; None ends that.

    Products of single matrices then are :func:`~kernbench.ops.matmul_tiled`; a bias and an
    activation are a kernel of their own. Batches keep the kernel that they have.

    Raises:
        UsageError: ``choose`` cannot be called.
    """
    if choose is not None and not callable(choose):
        raise UsageError(f"use_tiles takes a function or None, but got {choose!r}")
    extensions = (torch or current_context()).rank_state.extensions
    if choose is None:
        extensions.pop(use_tiles, None)
    else:
        extensions[use_tiles] = choose


def chosen_tiles(torch: Any) -> TileChoice | None:
    """Return what picks the tiles of the calling rank's products, None for the sizes."""
    found: TileChoice | None = torch.rank_state.extensions.get(use_tiles)
    return found
