"""``one_hot`` as a GPU has it: zeros, and ones scattered among them.

PyTorch decides by the device how it is composed. For the CPU it reads the least and the largest
index first, for which a GPU's host would wait; without data it compares with all classes.
Source: ``Onehot.cpp`` of PyTorch's ``aten/src/ATen/native``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.operations import PLAIN
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device.tensors import device_of
from kernbench.torch_bridge.placement.names import DEVICE_TYPE
from kernbench.torch_bridge.processes.of_all import compose, overriding
from kernbench.torch_bridge.processes.registrations import KEYSET


def install(patches: Patches) -> None:
    """Compose it so for tensors of devices."""
    with overriding(patches) as library:
        before = torch.library.get_kernel("aten::one_hot", "CPU")
        compose(library, "one_hot", partial(_one_hot, before))


def _one_hot(before: Any, tensor: Tensor, num_classes: int = -1) -> Any:
    # The compiler's tensors are compared with all classes on a GPU, too.
    is_there = type(tensor) in PLAIN and device_of(tensor).type == DEVICE_TYPE
    if not is_there or tensor.dtype != torch.int64 or not tensor.numel():
        return before.call_boxed(KEYSET, tensor, num_classes)
    if num_classes != -1 and num_classes < 1:
        raise RuntimeError("Class values must be smaller than num_classes.")
    if num_classes == -1:
        num_classes = int(tensor.max()) + 1
    result = torch.zeros((*tensor.shape, num_classes), dtype=tensor.dtype, device=device_of(tensor))
    return result.scatter_(-1, tensor.unsqueeze(-1), 1)
