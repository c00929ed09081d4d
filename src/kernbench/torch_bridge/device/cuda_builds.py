"""Hides what only CUDA builds of PyTorch have, so that programs run alike with either build.

It would call a driver, or a library of NVIDIA's. Without it PyTorch takes the paths of a build for
the CPU, which are the ones that the bridge replaces.
"""

from __future__ import annotations

import torch
import torch.backends.cudnn

from kernbench.torch_bridge.base.patches import Patches

_PREFIX = "_cuda_"
_OF_EVERY_BUILD = frozenset(
    {
        "_cuda_CUDAAllocator",
        # A class alone, which PyTorch's compiler imports where the build says that it has CUDA.
        "_cuda_CUDAAllocator_AllocatorState",
        "_cuda_beginAllocateCurrentThreadToPool",
        "_cuda_beginAllocateToPool",
        "_cuda_endAllocateToPool",
        "_cuda_isCurrentStreamCapturing",
        "_cuda_releasePool",
    }
)


def install(patches: Patches) -> None:
    """Hide it; what simulated devices support of it is installed afterwards."""
    for name in [name for name in vars(torch._C) if name.startswith(_PREFIX)]:
        if name not in _OF_EVERY_BUILD:
            patches.hide(torch._C, name)
    # Programs may ask which they have; PyTorch, whether it takes a tensor.
    patches.set(torch.backends.cudnn, "is_available", lambda: True)
    patches.set(torch.backends.cudnn, "version", lambda: _CUDNN_VERSION)
    patches.set(torch.backends.cudnn, "is_acceptable", lambda tensor: False)


_CUDNN_VERSION = 91002
"""The version of cuDNN in PyTorch's wheels with CUDA 12.8."""
