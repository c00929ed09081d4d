"""``torch.ops.symm_mem``: collectives of tensors in symmetric memory, by PyTorch's own kernels.

Each is a collective of the group that it names, with the algorithm that its kernel has: in one shot
every rank loads what all have, in two it reduces its share first, and a switch adds for those with
``multimem`` in their names. Source: PyTorch's ``symm_mem/CUDASymmetricMemoryOps.cu``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from kernbench.errors import UsageError
from kernbench.torch_bridge.base.operations import OF_SYMMETRIC_MEMORY
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.c10d import data
from kernbench.torch_bridge.c10d.calls import Call, signature
from kernbench.torch_bridge.c10d.data import reduce_in_order
from kernbench.torch_bridge.c10d.symmetric_memory import PeerMemory, group_of, has_multicast
from kernbench.torch_bridge.processes.of_all import library_of_all
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.processes.registrations import BACKEND, SHARED, Kernel

_SUM = "sum"


def _check(name: str, tensor: Tensor, reduce_op: str = _SUM) -> None:
    """Refuse what the kernels do."""
    if not PeerMemory.is_symm_mem_tensor(tensor):
        raise UsageError(
            f"{name}: the tensor of shape {tuple(tensor.shape)} must be allocated with "
            "torch.distributed._symmetric_memory.empty"
        )
    if not tensor.is_contiguous():
        raise UsageError(
            f"{name}: the tensor must be contiguous; its strides are {tensor.stride()}"
        )
    if reduce_op != _SUM:
        raise UsageError(f"{name}: only sum is supported, but got {reduce_op!r}")
    if "multimem" in name and not has_multicast(current()):
        raise UsageError(
            f"{name}: requires multicast support, which machine "
            f"{current().session.run.machine.name} has not (collectives.in_switch)"
        )


def _post(
    op: str, tensor: Tensor, into: Tensor, group: str, algorithm: str, compute: Any, count: int
) -> Tensor:
    reduce_op = "" if op == "all_gather" else _SUM
    asked = replace(signature(op, [tensor], count, reduce_op), algorithm=algorithm)
    group_of(group)._post(Call(asked, [tensor], [into], compute)).wait()
    return into


def _reduce(name: str, algorithm: str, tensor: Tensor, op: str, group: str, into: Tensor) -> Tensor:
    _check(name, tensor, op)
    compute = partial(data.all_reduce_into, ReduceOp.SUM)
    return _post("all_reduce", tensor, into, group, algorithm, compute, tensor.numel())


def _reduces(name: str, algorithm: str) -> Callable[..., Tensor]:
    """Return a reduction: into a tensor that it is told, into its own, or into a new one."""

    def call(tensor: Tensor, op: str, group: str, into: Tensor | None = None) -> Tensor:
        if into is None:
            into = tensor if name.endswith("_") else torch.empty_like(tensor)
        return _reduce(name, algorithm, tensor, op, group, into)

    return call


def _copy(
    shared: Tensor, tensor: Tensor, op: str, group: str, into: Tensor | None = None
) -> Tensor:
    into = torch.empty_like(tensor) if into is None else into
    used = shared.view(-1)[: tensor.numel()].view(tensor.shape)
    used.copy_(tensor)
    return _reduce("one_shot_all_reduce_copy", "one_shot", used, op, group, into)


def _all_gather(tensor: Tensor, group: str, into: Tensor) -> Tensor:
    _check("multimem_all_gather_out", into)
    # Each rank stores its part once, to an address of the switch: the links have what they have
    # where each stores it to all.
    return _post("all_gather", tensor, into, group, "one_shot", data.all_gather_flat, into.numel())


def _reduce_scatter(tensor: Tensor, group: str, split_last_dim: bool, into: Tensor) -> Tensor:
    _check("reduce_scatter_out", tensor)
    ranks = group_of(group).size()
    dim = tensor.dim() - 1 if split_last_dim else 0

    def compute(inputs: Any, outputs: Any) -> None:
        total = reduce_in_order([item[0] for item in inputs], ReduceOp.SUM)
        for position, (target,) in enumerate(outputs):
            target.copy_(total.chunk(ranks, dim)[position].reshape(target.shape))

    return _post("reduce_scatter", tensor, into, group, "one_shot", compute, tensor.numel())


_ALGORITHMS = {
    "one_shot_all_reduce": "one_shot",
    "one_shot_all_reduce_out": "one_shot",
    "two_shot_all_reduce_": "two_shot",
    "two_shot_all_reduce_out": "two_shot",
    "multimem_all_reduce_": "in_switch",
    "multimem_one_shot_all_reduce": "in_switch",
    "multimem_one_shot_all_reduce_out": "in_switch",
}
_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: _reduces(name, algorithm) for name, algorithm in _ALGORITHMS.items()},
    "one_shot_all_reduce_copy": _copy,
    "one_shot_all_reduce_copy_out": _copy,
    "multimem_all_gather_out": _all_gather,
    "reduce_scatter_out": _reduce_scatter,
    "memset32_": PeerMemory.memset32,
    "stream_write_value32_": PeerMemory.stream_write_value32,
}


def install(patches: Patches) -> None:
    """Let simulated devices have them."""
    library = library_of_all("symm_mem")
    patches.on_close(library._destroy)
    patches.on_close(SHARED.remove_for_all, library)
    assert frozenset(f"symm_mem.{item}.default" for item in _OPERATIONS) == OF_SYMMETRIC_MEMORY
    for name, function in _OPERATIONS.items():
        SHARED.add(f"symm_mem::{name}", BACKEND, Kernel(library, function, False))
