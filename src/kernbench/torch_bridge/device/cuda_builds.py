"""What only CUDA builds of PyTorch have: a program runs on simulated devices with either build.

It would ask for a driver, or for a library of NVIDIA's. Without it PyTorch goes the ways that it
goes in a build for the CPU, and these are the ones that the bridge answers on.
"""

from __future__ import annotations

import torch
import torch.backends.cudnn

from kernbench.torch_bridge.base.patches import Patches

_PREFIX = "_cuda_"
_OF_EVERY_BUILD = frozenset(
    {
        "_cuda_CUDAAllocator",
        "_cuda_beginAllocateCurrentThreadToPool",
        "_cuda_beginAllocateToPool",
        "_cuda_endAllocateToPool",
        "_cuda_isCurrentStreamCapturing",
        "_cuda_releasePool",
    }
)


def install(patches: Patches) -> None:
    """Hide it; what simulated devices have of it is put there afterwards."""
    for name in [each for each in vars(torch._C) if each.startswith(_PREFIX)]:
        if name not in _OF_EVERY_BUILD:
            patches.hide(torch._C, name)
    patches.set(torch.backends.cudnn, "is_available", lambda: False)
    patches.set(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
