"""Replacing CUDA's devices by simulated ones."""

from __future__ import annotations

from kernbench.torch_bridge.base.patches import Installation, Patches, install_all
from kernbench.torch_bridge.device import (
    accelerator,
    asked_in_cpp,
    autocast,
    buckets,
    ctypes_libraries,
    cuda_builds,
    cuda_memory,
    gradients,
    lacking,
    legacy,
    module,
    pinned,
    rng,
    snapshots,
    storages,
    tensors,
)

_HIDES = "it hides what CUDA builds have under the same names"

INSTALLATIONS = (
    Installation("cuda_builds", "nothing that only CUDA builds have", cuda_builds.install),
    Installation(
        "module", "torch.cuda: devices, streams and events", module.install, {"cuda_builds": _HIDES}
    ),
    Installation(
        "accelerator",
        "torch.accelerator, and what code for CUDA builds calls",
        accelerator.install,
        {"cuda_builds": _HIDES},
    ),
    Installation("rng", "DTensor's random numbers, equal on all ranks", rng.install),
    Installation("tensors", "tensors that report their simulated device", tensors.install),
    Installation("asked_in_cpp", "what C++ checks by a tensor's device", asked_in_cpp.install),
    Installation("storages", "storages on their simulated device", storages.install),
    Installation("pinned", "pinned memory of the host", pinned.install),
    Installation("legacy", "torch.cuda.FloatTensor and the like", legacy.install),
    Installation("autocast", "autocast on devices", autocast.install),
    Installation("gradients", "gradients on their tensors' devices", gradients.install),
    Installation("buckets", "DDP's buckets on their parameters' devices", buckets.install),
    Installation("cuda_memory", "torch.cuda.memory", cuda_memory.install, {"cuda_builds": _HIDES}),
    Installation(
        "snapshots",
        "torch.cuda.memory._snapshot, and what it records",
        snapshots.install,
        {"cuda_builds": _HIDES},
    ),
    Installation("ctypes_libraries", "NVML and the CUDA runtime", ctypes_libraries.install),
    Installation(
        "lacking", "errors for what is not supported", lacking.install, {"cuda_builds": _HIDES}
    ),
)


def install(patches: Patches) -> None:
    """Let programs that name ``cuda`` use the machine's SIPs."""
    install_all(patches, INSTALLATIONS)
