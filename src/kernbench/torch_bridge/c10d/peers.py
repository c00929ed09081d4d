"""All-reduces by kernels of PyTorch's own, which ``ENABLE_INTRA_NODE_COMM`` asks NCCL's group for.

A rank copies its tensor to memory that its peers see, and a kernel loads what all have copied: in
one shot for small tensors, in two for larger ones. Source: PyTorch,
torch/csrc/distributed/c10d/symm_mem/intra_node_comm.{cpp,cu}, and ProcessGroupNCCL.cpp.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from kernbench.hardware import Machine

_ASKED = "ENABLE_INTRA_NODE_COMM"
_YES = frozenset({"1", "y", "yes", "t", "true"})
_MOST_RANKS = 8
_LEAST_ARCHITECTURE = 80
_KIB = 1024
_ONE_SHOT_BYTES = 256 * _KIB
_TWO_SHOT_BYTES = 10 * _KIB * _KIB
"""Up to which sizes; the second is the size of the buffer, too."""
_DTYPES = (torch.bfloat16, torch.float32)
_ALIGNED_BYTES = 4


def buffer_of(num_ranks: int, machine: Machine) -> PeerBuffer | None:
    """Return the calling rank's buffer for a group.

    There is one if its environment asks for such kernels, and NVLink joins devices that have them.
    """
    asked = os.environ.get(_ASKED, "").lower() in _YES
    if not asked or not 2 <= num_ranks <= _MOST_RANKS:
        return None
    library = machine.spec.collectives
    nccl = None if library is None else library.nccl
    has_kernels = (machine.spec.cuda_architecture or 0) >= _LEAST_ARCHITECTURE
    return PeerBuffer() if has_kernels and nccl is not None and nccl.hop == "nvlink" else None


class PeerBuffer:
    """What a rank copies its tensors to, so that the other ranks of its group can load them."""

    def __init__(self) -> None:
        self._bytes = torch.empty(_TWO_SHOT_BYTES, dtype=torch.uint8, device="cuda")
        self._known: dict[tuple[torch.Size, torch.dtype], Tensor] = {}

    def like(self, tensor: Tensor) -> Tensor:
        """Return the first of its memory as a tensor of that shape; later ones cost no calls."""
        key = (tensor.shape, tensor.dtype)
        if key not in self._known:
            size = tensor.numel() * tensor.element_size()
            self._known[key] = self._bytes[:size].view(tensor.dtype).view(tensor.shape)
        return self._known[key]


def algorithm_of(tensors: Sequence[Tensor]) -> str:
    """Return by which algorithm a group whose ranks see each other's memory reduces tensors.

    An empty text says that NCCL does.
    """
    if len(tensors) != 1 or tensors[0].dtype not in _DTYPES:
        return ""
    (tensor,) = tensors
    start = tensor.storage_offset() * tensor.element_size()
    size = tensor.numel() * tensor.element_size()
    if start % _ALIGNED_BYTES or size % _ALIGNED_BYTES or size > _TWO_SHOT_BYTES:
        return ""
    return "one_shot" if size <= _ONE_SHOT_BYTES else "two_shot"


def see_each_other(machine: Machine, ranks: tuple[int, ...]) -> bool:
    """Return whether ranks, each on the device of its number, share a host and links in pairs."""
    return len({rank // machine.sips_per_host for rank in ranks}) == 1 and (
        machine.topology == "switch"
        or all(len(machine.route(*pair)) == 1 for pair in combinations(ranks, 2))
    )
