"""The properties of an operation that the observer needs, computed once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import increment_version

from kernbench.torch_bridge.base.host_times import HostPart, host_part
from kernbench.torch_bridge.base.refusals import WITHOUT_SYMMETRIC_MEMORY, UnsupportedTorchError


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


_KEYS = torch._C.DispatchKey
_without_dispatch = torch._C._disabled_torch_dispatch_impl
# Collectives cost what their own part of the run says.
_FREE_NAMESPACES = frozenset({"prim", "_c10d_functional", "_c10d_functional_autograd", "c10d"})
_OF_PYTORCH = _FREE_NAMESPACES | {"aten", "prims", "fsdp"}
_OF_SYMMETRIC_MEMORY = """
    one_shot_all_reduce one_shot_all_reduce_out one_shot_all_reduce_copy
    one_shot_all_reduce_copy_out two_shot_all_reduce_ two_shot_all_reduce_out multimem_all_reduce_
    multimem_one_shot_all_reduce multimem_one_shot_all_reduce_out multimem_all_gather_out
    reduce_scatter_out memset32_ stream_write_value32_
"""
OF_SYMMETRIC_MEMORY = frozenset(f"symm_mem.{word}.default" for word in _OF_SYMMETRIC_MEMORY.split())
"""Those that simulated devices have; others of that namespace are refused by name."""
_REFUSED_NAMESPACES = frozenset({"symm_mem"})
# They reserve memory or show it differently; no kernel runs.
_FREE = _aten(
    "detach.default is_pinned.default empty.memory_format empty_like.default "
    "empty_strided.default lift_fresh.default new_empty.default new_empty_strided.default "
    "_unsafe_view.default resize_.default squeeze_.default squeeze_.dim squeeze_.dims "
    "unsafe_split.Tensor unsafe_split_with_sizes.default"
) | {"fsdp.record_grad_output_stream.default"}
# Their result is on the host: the program waits until the device has computed it.
_READ_BY_HOST = _aten("_local_scalar_dense.default item.default is_nonzero.default equal.default")
# The size of their result is a number on the device, which the host reads before it can go on.
_SIZED_BY_NUMBERS = _aten(
    "nonzero.default nonzero.out masked_select.default masked_select.out _unique.default "
    "_unique2.default unique_consecutive.default unique_dim.default bincount.default "
    "repeat_interleave.Tensor"
)
# Those among which a mask is taken apart into the places that it has, as nonzero does it.
_BY_INDICES = frozenset({"aten.index.Tensor"})
_PUT = _aten(
    "index_put.default index_put_.default _index_put_impl_.default _unsafe_index_put.default"
)
_SIZED = _SIZED_BY_NUMBERS | _BY_INDICES | _PUT
OF_INDICES = _BY_INDICES | _PUT | {"aten._unsafe_index.Tensor"}
"""Those whose list of tensors is of indices, which CUDA takes from the host, too."""
_MASKS = (torch.bool, torch.uint8)
_MOVES = frozenset({"aten.clone.default", "aten.copy_.default", "aten._to_copy.default"})
_BY_LAYOUT = _MOVES | _aten(
    "convolution.default convolution_backward.default mm.default addmm.default bmm.default "
    "baddbmm.default"
)
_HOST_RESULTS = frozenset({"aten._pack_padded_sequence.default"})
_ELEMENTWISE = _MOVES | {"aten.masked_fill_.Scalar", "aten.masked_fill_.Tensor"}
"""Those that PyTorch does not mark as pointwise."""
_COPIES = frozenset({"aten.copy_.default", "aten._to_copy.default"})
_OF_GROUPS = {
    "aten._grouped_mm.default": 2,
    "aten._scaled_grouped_mm.default": 4,
    "aten._scaled_grouped_mm_v2.default": 8,
}
"""The position of the tensor that says where groups end, ``offs``, of products of groups."""
# Of CUDA's kernels, those that are not checked (``device_check: NoCheck``) take a host's number:
# pointwise ones but for these, and the named ones.
_CHECKED_NAMES = """
    native_dropout_backward clamp clamp_max clamp_min gcd lcm logaddexp logaddexp2 gelu_backward
    silu_backward threshold_backward igamma igammac nextafter equal sigmoid_backward logit_backward
    tanh_backward
"""
_NAMES_WITH_NUMBERS = """
    _cudnn_rnn binary_cross_entropy binomial copysign eq floor_divide ge gt heaviside index
    index_put _index_put_impl _unsafe_index _unsafe_index_put index_fill __irshift le lt
    masked_fill mse_loss ne rsub smooth_l1_loss where
"""
# The rest of them looks for itself; ``bernoulli_`` moves what is elsewhere.
_UNCHECKED = re.compile(
    r"aten\.(bernoulli_|fill_|set_|is_set_to|_validate_compressed_sparse_indices"
    r"|_nested_from_padded|_nested_view_from_buffer|_fused_\w+_(?=\.tensor_lr)"
    r"|\w*(?<!cudnn)_attention\w*_backward)\."
)
# The CPU composes them of others; CUDA has one kernel, or checks all operands first.
_NAMES_OF_ONE_KERNEL = """
    block_diag convolution convolution_backward _chunk_cat _grouped_mm split_with_sizes_copy
    _fused_rms_norm mish_backward
"""
_CHECKED, _WITH_NUMBERS, _OF_ONE_KERNEL = map(
    _aten, (_CHECKED_NAMES, _NAMES_WITH_NUMBERS, _NAMES_OF_ONE_KERNEL)
)
"""Source: ``dispatch`` and ``device_check`` in PyTorch's native_functions.yaml."""
_COMPOSED = (_KEYS.CompositeExplicitAutograd, _KEYS.CompositeExplicitAutogradNonFunctional)

_WRITTEN_UNSAID = {
    "aten.native_batch_norm.default": (3, 4),
    "aten.batch_norm_gather_stats_with_counts.default": (3, 4),
    "fsdp.all_gather_copy_in.default": (1,),
}
"""Running statistics and buffers that are written although the schema does not say so."""


PLAIN = {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}
"""Tensor classes that hold memory themselves, of those seen so far; all others are wrappers."""


def holds_memory(kind: type) -> bool:
    """Return whether a tensor class holds memory itself; if so, add it to :data:`PLAIN`."""
    if getattr(kind, "__torch_dispatch__", None) is not _without_dispatch:
        return False
    PLAIN.add(kind)
    return True


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """An overload, such as ``aten.add.Tensor``; an observer has one object for each."""

    call: Callable[..., Any]
    """Executes it."""
    name: str
    """The name in reports: without the overload."""
    full_name: str
    is_free: bool
    """Whether it takes no time on a device."""
    shows: bool
    """Whether its result is another view of its operand."""
    is_random: bool
    is_copy: bool
    """Whether its operand and its result may be in different places."""
    is_read: bool
    """Whether the host gets its result, and waits for it."""
    may_wait: bool
    """Whether the host may wait for a number on the device, as :func:`waits` says of a call."""
    makes_memory: bool
    """Whether a result may have memory of its own."""
    has_host_results: bool
    """Whether all its results but the first are on the host."""
    makes_empty: bool
    """Whether it leaves that memory uninitialized."""
    is_on_one_device: bool
    """Whether all its operands must be on one device."""
    takes_numbers: bool
    """Whether one without dims that it reads need not be."""
    composed_at: Any
    """The dispatch key of what composes it of others, which say where operands may be; or None."""
    is_composite: bool
    """Whether it is composed of other operations. Below autograd (in the handlers of wrappers)
    PyTorch does not decompose it before it reaches a backend."""
    is_view: bool
    """Whether it only makes a view of its operand, on any device."""
    is_custom: bool
    """Whether it may be implemented in Python, by a library or by the program."""
    is_plain: bool
    """Whether calls need nothing but a time, once their operands are known to be on one device."""
    moves_indices: bool
    """Whether it moves indices, its second argument, to the device of its first."""
    has_choices: bool
    """Whether its time depends on more than its arguments' layouts: kernels of the kinds that the
    program allows when it is called, numbers that say where groups end."""
    ends_at: int | None
    """The position of the argument with these numbers."""
    is_elementwise: bool
    """Whether each element of its result is of one element of each operand."""
    is_by_layout: bool
    """Whether its time depends on how its operands lie in memory, too."""
    host_part: HostPart
    """What it is to the host that calls it."""
    written: frozenset[int]
    """Positions of the arguments that it writes, by its schema."""
    changed: tuple[int, ...]
    """Positions of the arguments that it actually writes, in order."""
    written_names: frozenset[str]
    """Names of the arguments that it writes, by its schema."""


def describe(func: Any) -> Operation:
    """Return the properties of an overload. It is not cached here: callers keep it."""
    schema, full_name, packet = func._schema, str(func), str(func._overloadpacket)
    if func.namespace in _REFUSED_NAMESPACES and full_name not in OF_SYMMETRIC_MEMORY:
        raise UnsupportedTorchError(f"torch.ops.{full_name}: {WITHOUT_SYMMETRIC_MEMORY}")
    shows = any(
        item.alias_info is not None and not item.alias_info.is_write for item in schema.returns
    )
    is_copy = full_name in _COPIES
    is_free = (
        shows
        or func.namespace in _FREE_NAMESPACES
        or full_name in _FREE
        # They change what their operand looks like.
        or torch.Tag.inplace_view in func.tags
    )
    is_read = full_name in _READ_BY_HOST
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    is_pointwise = torch.Tag.pointwise in func.tags
    makes_memory = any(item.alias_info is None for item in schema.returns)
    # Some have both, and a backend's own kernel rounds otherwise (silu_backward).
    is_composite = (
        # Those that ask a tensor for its device or layout are none of the dispatcher's.
        func.namespace != "prim"
        and func.has_kernel_for_dispatch_key(_KEYS.CompositeImplicitAutograd)
        and not func.has_kernel_for_dispatch_key(_KEYS.CPU)
    )
    written = frozenset(
        position
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    is_custom = func.namespace not in _OF_PYTORCH
    base = packet.rstrip("_")
    is_unchecked = base not in _CHECKED or full_name.endswith(".Tensor_out")
    takes_numbers = base in _WITH_NUMBERS or (is_pointwise and is_unchecked)
    is_loose = (
        func.namespace != "aten" or is_copy or is_free or full_name in _HOST_RESULTS
    ) or _UNCHECKED.match(full_name) is not None
    keys = () if is_loose else _COMPOSED
    composed_at = next(filter(func.has_kernel_for_dispatch_key, keys), None)
    is_composed = (composed_at is not None or is_composite) and not (
        base in _OF_ONE_KERNEL or func.has_kernel_for_dispatch_key(_KEYS.CPU)
    )
    is_on_one_device = takes_numbers or not (is_loose or is_composed)
    counts = bool(written) and (is_custom or full_name.startswith("aten._foreach_"))
    ends_at = _OF_GROUPS.get(full_name)
    has_choices = full_name.startswith("aten._scaled_dot_product_") or ends_at is not None
    return Operation(
        call=partial(_counting, func._op, written) if counts else func._op,
        # A device's attention has the name without what says that the host computes it.
        name=packet.replace("_for_cpu", ""),
        full_name=full_name,
        is_free=is_free,
        shows=shows,
        is_random=is_random,
        is_copy=is_copy,
        is_read=is_read,
        may_wait=full_name in _SIZED,
        makes_memory=makes_memory,
        has_host_results=full_name in _HOST_RESULTS,
        makes_empty=full_name.startswith(("aten.empty", "aten.new_empty")),
        is_on_one_device=is_on_one_device,
        takes_numbers=takes_numbers,
        composed_at=None if is_on_one_device else composed_at,
        is_composite=is_composite,
        is_view=shows and not makes_memory and not is_composite,
        is_custom=is_custom,
        # Others may be Python, which asks where tensors are.
        is_plain=func.namespace == "aten"
        and not (is_free or is_copy or is_random or is_read or is_composite)
        and not has_choices
        and full_name not in _HOST_RESULTS
        and full_name not in _SIZED,
        moves_indices=full_name in _PUT,
        has_choices=has_choices,
        ends_at=ends_at,
        is_elementwise=is_pointwise or full_name in _ELEMENTWISE,
        is_by_layout=full_name in _BY_LAYOUT,
        host_part=host_part(func, full_name, is_free=is_free),
        written=written,
        changed=tuple(sorted(written.union(_WRITTEN_UNSAID.get(full_name, ())))),
        written_names=frozenset(schema.arguments[position].name for position in written),
    )


def _counting(call: Callable[..., Any], written: frozenset[int], *args: Any, **kwargs: Any) -> Any:
    """Call, and count a version of each tensor which that writes.

    CUDA's kernels for lists of tensors do so themselves, and operations that a kernel in Python
    calls; here, below autograd, they do not.
    """
    result = call(*args, **kwargs)
    count_versions(args, written)
    return result


def count_versions(args: Any, written: frozenset[int]) -> None:
    """Count a version of each tensor at positions of arguments, and of each in a list there."""
    for position in written.intersection(range(len(args))):
        value = args[position]
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor) and not item.is_inference():
                increment_version(item)


def waits(operation: Operation, args: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether a call of an operation that may wait makes the host of a GPU wait.

    Source: ``expandTensors`` and ``canDispatchToMaskedFill`` of PyTorch's ``IndexingUtils.h``, and
    the CUDA kernels of the others.
    """
    name = operation.full_name
    if name in _SIZED_BY_NUMBERS:
        return name != "aten.repeat_interleave.Tensor" or kwargs.get("output_size") is None
    masks = (isinstance(arg, torch.Tensor) and arg.dtype in _MASKS for arg in args[1])
    if not any(masks):
        return False
    # One value for all places is filled in under the mask.
    adds = (args[3] if len(args) > 3 else kwargs.get("accumulate", False)) or name not in _PUT
    return bool(adds or args[2].numel() != 1)
