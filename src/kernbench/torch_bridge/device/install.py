"""Putting simulated devices in the place of CUDA's."""

from __future__ import annotations

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device import (
    accelerator,
    autocast,
    buckets,
    cuda_builds,
    gradients,
    lacking,
    legacy,
    module,
    pinned,
    rng,
    tensors,
)
from kernbench.torch_bridge.device import cuda_memory as cuda


def install(patches: Patches) -> None:
    """Let programs that say ``cuda`` use the machine's SIPs."""
    cuda_builds.install(patches)
    module.install(patches)
    accelerator.install(patches)
    rng.install(patches)
    tensors.install(patches)
    pinned.install(patches)
    legacy.install(patches)
    autocast.install(patches)
    gradients.install(patches)
    buckets.install(patches)
    cuda.install(patches)
    lacking.install(patches)
