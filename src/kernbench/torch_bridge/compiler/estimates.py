"""What the compiler estimates without running it: the machine's peaks, and times of collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.links import Asked
from kernbench.runtime_api import Run
from kernbench.torch_bridge.base.patches import Patches

_TF32 = "tf32"
_COLLECTIVES = ("ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", "ALL_TO_ALL")
_PS_PER_MS = 1e9
_FLOPS_PER_TFLOP = 1e12


def install(patches: Patches, run: Run) -> None:
    """Let the compiler read the machine, where it asks ``nvidia-smi`` or has tables of GPUs."""
    import torch._utils_internal
    from torch._inductor import comm_analysis, utils

    patches.set(utils, "datasheet_tops", lambda *args, **kwargs: _peak(run, *args, **kwargs))
    clock_mhz = float(run.machine.spec.sip.clock_ghz) * 1e3
    patches.set(torch._utils_internal, "max_clock_rate", lambda: clock_mhz)
    patches.wrap(comm_analysis, "estimate_nccl_collective_runtime_impl", _modeled_ms, run)


def _peak(run: Run, dtype: torch.dtype, is_tf32: bool = False) -> float | None:
    """Return the TFLOP/s of products of a dtype; None where the machine gives no rate."""
    sip = run.machine.spec.sip
    name = str(dtype).removeprefix("torch.")
    if is_tf32 and name == "float32" and _TF32 in sip.pe.gemm.flops_per_clock:
        name = _TF32
    if name not in sip.pe.gemm.flops_per_clock:
        return None
    return float(sip.peak_flops_per_s(name)) / _FLOPS_PER_TFLOP


def _modeled_ms(
    original: Callable[..., float], run: Run, size_bytes: int, group_size: int, kind: Any
) -> float:
    """Return the modeled time of a collective on idle links, in milliseconds.

    Its ranks are the first of the machine; the size is NCCL's, in bytes.
    """
    if not (1 < group_size <= run.machine.num_sips and kind.name in _COLLECTIVES):
        return original(size_bytes, group_size, kind)
    # A schedule splits it over the ranks.
    num_elements = -(-int(size_bytes) // group_size) * group_size
    asked = Asked(kind.name.lower(), group_size, num_elements, 1)
    sips, selector = tuple(range(group_size)), run.network.selector
    time_ps, _ = selector.bracket(asked, sips, selector.choose(asked, sips))
    return time_ps / _PS_PER_MS
