"""What must work differently in PyTorch when device tensors have no data (ADR-0098)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch import Tensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device.tensors import cpp_device, cpu, device_of
from kernbench.torch_bridge.placement.residence import storage_of

_repr = Tensor.__repr__
_data: Any = Tensor.data
_takes_data_in_cpp = torch._has_compatible_shallow_copy_type


def install(patches: Patches) -> None:
    """Install the replacements."""
    for module in (torch.distributed.utils, torch.nn.parallel.distributed):
        patches.set(module, "_verify_param_shape_across_processes", _verify_parameters)
    patches.set_all(Tensor, __repr__=_described, data=property(_data.__get__, _set_data))
    patches.set(torch, "_has_compatible_shallow_copy_type", _takes_data)
    # Pickled objects are sent as tensors, and would be lost on a device without data.
    patches.set(c10d, "_get_object_coll_device", lambda group=None: "cpu")


def _verify_parameters(group: Any, tensors: list[Tensor], logger: Any = None) -> None:
    """DDP's comparison of models across ranks, for which C++ would read data."""
    device = device_of(tensors[0])
    count = torch.tensor([len(tensors)]).to(device)
    # Nobody looks at the counts: known, each rank would compute those of all ranks. Not by a
    # function, whose call would count as one of the program's Python.
    storage_of(count)._known = None
    counts = [torch.empty_like(count) for _ in range(c10d.get_world_size(group))]
    c10d.all_gather(counts, count, group)
    for item in counts:
        item.item()
    layouts = torch.zeros(sum(2 * tensor.dim() for tensor in tensors), dtype=torch.int64).to(device)
    c10d.broadcast(layouts, group=group, group_src=0)
    layouts.cpu()


def _set_data(self: Tensor, value: Tensor) -> None:
    """``Tensor.data = value``, which C++ refuses between host tensors and those without data."""
    if cpp_device(self) == cpp_device(value):
        _data.__set__(self, value)
        return
    torch._C._swap_tensor_impl(self, value.detach().requires_grad_(self.requires_grad))


def _takes_data(input: Tensor, from_: Tensor) -> bool:
    """Whether ``input.data = from_`` can be, as it can between the host and a GPU.

    By this, ``Module.to`` decides whether parameters stay themselves, and with them tied weights.
    PyTorch's compiler compares the names of the parameters with those of its own replacement.
    """
    if cpp_device(input) == cpp_device(from_):
        return bool(_takes_data_in_cpp(input, from_))
    devices = {device_of(input).type, device_of(from_).type}
    # What the autograd of an earlier forward holds cannot be swapped. A gradient is lost with what
    # its parameter held: the parameter gets another.
    is_parameter = isinstance(input, torch.nn.Parameter)
    return devices == {"cpu", "cuda"} and is_parameter and input._use_count() == 1


def _described(self: Tensor, *, tensor_contents: Any = None) -> str:
    """``repr`` of a tensor, without elements if it is on a device."""
    device = device_of(self)
    if tensor_contents is not None or device.type != "cuda":
        return _repr(self, tensor_contents=tensor_contents)
    if self.layout is torch.strided and not self.is_nested:
        # The host waits for what it would print.
        cpu(self.detach().as_strided((min(self.numel(), 1),), (1,)))
    return f"tensor(..., device='{device}', size={tuple(self.shape)}, dtype={self.dtype})"
