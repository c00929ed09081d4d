"""Putting simulated devices in the place of CUDA's."""

from __future__ import annotations

from kernbench.torch_bridge.base.installation import Installation, install_all
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device import (
    accelerator,
    autocast,
    buckets,
    cuda_builds,
    cuda_memory,
    gradients,
    lacking,
    legacy,
    module,
    pinned,
    rng,
    tensors,
)

_HIDES = "it hides what CUDA builds have under the same names"

INSTALLATIONS = (
    Installation("cuda_builds", "no part that only CUDA builds have", cuda_builds.install),
    Installation(
        "module", "torch.cuda: devices, streams and events", module.install, {"cuda_builds": _HIDES}
    ),
    Installation("accelerator", "torch.accelerator", accelerator.install),
    Installation("rng", "DTensor's random numbers, alike on all ranks", rng.install),
    Installation("tensors", "tensors that say where they are", tensors.install),
    Installation("pinned", "pinned memory of the host", pinned.install),
    Installation("legacy", "torch.cuda.FloatTensor and its like", legacy.install),
    Installation("autocast", "autocast of devices", autocast.install),
    Installation("gradients", "gradients where their tensors are", gradients.install),
    Installation("buckets", "buckets of DDP where their parameters are", buckets.install),
    Installation("cuda_memory", "torch.cuda.memory", cuda_memory.install, {"cuda_builds": _HIDES}),
    Installation(
        "lacking", "refusals of what devices lack", lacking.install, {"cuda_builds": _HIDES}
    ),
)


def install(patches: Patches) -> None:
    """Let programs that say ``cuda`` use the machine's SIPs."""
    install_all(patches, INSTALLATIONS)
