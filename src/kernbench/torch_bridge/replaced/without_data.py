"""What must work differently in PyTorch when device tensors have no data (ADR-0066)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's users know
from torch import Tensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.costs.attention import EFFICIENT, MATH
from kernbench.torch_bridge.device.autocast import cast_as_asked
from kernbench.torch_bridge.device.tensors import cpp_device, device_of
from kernbench.torch_bridge.placement.names import DEVICE_TYPE
from kernbench.torch_bridge.placement.residence import storage_of
from kernbench.torch_bridge.replaced import attention_choice

_aten = torch.ops.aten
_attention: Any = F.scaled_dot_product_attention
_repr = Tensor.__repr__
_data: Any = Tensor.data
_takes_data_in_cpp = torch._has_compatible_shallow_copy_type
_HALVES = (torch.float16, torch.bfloat16)


def install(patches: Patches) -> None:
    """Install the replacements."""
    patches.set(F, "scaled_dot_product_attention", scaled_dot_product_attention)
    for module in (torch.distributed.utils, torch.nn.parallel.distributed):
        patches.set(module, "_verify_param_shape_across_processes", _verify_parameters)
    patches.set(Tensor, "__repr__", _described)
    patches.set(Tensor, "data", property(_data.__get__, _set_data))
    patches.set(torch, "_has_compatible_shallow_copy_type", _takes_data)
    # Pickled objects are sent as tensors, and would be lost on a device without data.
    patches.set(c10d, "_get_object_coll_device", lambda group=None: "cpu")


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention as one operation, as on CUDA: C++ decomposes it for tensors without data."""
    given = (query, key, value, attn_mask)
    if device_of(query).type != DEVICE_TYPE:
        return _attention(*given, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    kind = attention_choice.kind_of(*given, dropout_p, is_causal, enable_gqa)
    if kind == MATH:
        return attention_choice.by_products(
            *given, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    query, key, value = cast_as_asked(query, key, value)
    alike = query.size(-1) == value.size(-1)
    # Where a machine is no GPU, any kernels take any call.
    if kind != EFFICIENT and attn_mask is None and alike and query.dtype in _HALVES:
        flash = _aten._scaled_dot_product_flash_attention
        out: Tensor = flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
        return out
    if enable_gqa:
        group = query.size(-3) // key.size(-3)
        key, value = (each.repeat_interleave(group, -3) for each in (key, value))
    if attn_mask is not None:
        bias = attn_mask.to(query.dtype) if attn_mask.dtype is torch.bool else attn_mask
        attn_mask = bias.expand(*query.shape[:-1], key.size(-2))
    efficient = _aten._scaled_dot_product_efficient_attention
    keeps = query.requires_grad or key.requires_grad or value.requires_grad
    results = efficient(query, key, value, attn_mask, keeps, dropout_p, is_causal, scale=scale)
    made: Tensor = results[0]
    return made


def _verify_parameters(group: Any, tensors: list[Tensor], logger: Any = None) -> None:
    """DDP's comparison of models across ranks, for which C++ would read data."""
    device = device_of(tensors[0])
    count = torch.tensor([len(tensors)]).to(device)
    # Nobody looks at the counts: known, each rank would compute those of all ranks. Not by a
    # function, whose call would count as one of the program's Python.
    storage_of(count)._known = None
    counts = [torch.empty_like(count) for _ in range(c10d.get_world_size(group))]
    c10d.all_gather(counts, count, group)
    for each in counts:
        each.item()
    layouts = torch.zeros(sum(2 * each.dim() for each in tensors), dtype=torch.int64).to(device)
    c10d.broadcast(layouts, group=group, group_src=0)
    layouts.cpu()


def _set_data(self: Tensor, value: Tensor) -> None:
    """``Tensor.data = value``, which C++ refuses between host tensors and those without data."""
    if cpp_device(self) == cpp_device(value):
        _data.__set__(self, value)
        return
    made = value.detach().requires_grad_(self.requires_grad)
    torch._C._swap_tensor_impl(self, made)


def _takes_data(input: Tensor, from_: Tensor) -> bool:
    """Whether ``input.data = from_`` can be, as it can between the host and a GPU.

    By this, ``Module.to`` decides whether parameters stay themselves, and with them tied weights.
    PyTorch's compiler compares the names of the parameters with those of its own replacement.
    """
    if cpp_device(input) == cpp_device(from_):
        return bool(_takes_data_in_cpp(input, from_))
    devices = {device_of(input).type, device_of(from_).type}
    # What the autograd of an earlier forward holds cannot be swapped.
    return devices == {"cpu", "cuda"} and input._use_count() == 1


def _described(self: Tensor, *, tensor_contents: Any = None) -> str:
    """``repr`` of a tensor, without elements if it is on a device."""
    device = device_of(self)
    if tensor_contents is not None or device.type != "cuda":
        return _repr(self, tensor_contents=tensor_contents)
    return f"tensor(..., device='{device}', size={tuple(self.shape)}, dtype={self.dtype})"
