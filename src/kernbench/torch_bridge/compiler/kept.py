"""For whom the compiler's files on disk hold: the key that tells runs apart.

Inductor keeps graphs, kernels and the choices of its benchmarks. Its keys know nothing of
kernbench: neither of the machine whose modeled time decided, nor of what the bridge shows to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kernbench
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.placement.names import DEVICE_TYPE, with_index

if TYPE_CHECKING:
    from kernbench.runtime_api import Run

_KERNBENCH = Path(__file__).parents[2]
_DECIDING = ("torch_bridge", "triton_backend")


def install(patches: Patches) -> None:
    """Keep what is compiled by its device, which PyTorch's keys of DTensors leave out."""
    from torch._inductor.codecache import FxGraphHashDetails

    patches.set(FxGraphHashDetails, "__init__", _of_device(FxGraphHashDetails.__init__))


def _of_device(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.kernbench_device = with_index(DEVICE_TYPE).index

    return init


def kept_for(run: Run) -> str:
    """Return what all keys of a run's compiled files have: version, machine, and data mode."""
    machine = run.machine
    sips = {sip_id: spec.model_dump_json() for sip_id, spec in machine.sip_overrides.items()}
    parts = (
        kernbench.__version__,
        _sources(),
        machine.spec.model_dump_json(),
        str(sorted(sips.items())),
        str(run.has_data),
    )
    return "-kernbench-" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@cache
def _sources() -> str:
    """Return the states of the files that decide what is compiled: versions change them."""
    states = []
    for package in _DECIDING:
        for path in sorted((_KERNBENCH / package).rglob("*.py")):
            found = path.stat()
            states.append(f"{path} {found.st_size} {found.st_mtime_ns}")
    return "\n".join(states)
