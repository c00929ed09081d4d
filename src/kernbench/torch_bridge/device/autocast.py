"""``torch.autocast`` on simulated devices, with CUDA's lists of operations (ADR-0077).

To C++ a device tensor is on the CPU, or has no data, and CUDA's autocast casts neither. So its
kernels are replaced by those below during a run, and a thread in which autocast is on has their
dispatch key for all tensors.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from functools import partial
from threading import local
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.placement.names import DEVICE_TYPE
from kernbench.torch_bridge.processes.call_counts import in_cxx
from kernbench.torch_bridge.processes.of_all import library_of_all

_set_enabled = torch.set_autocast_enabled
_clear_cache = torch.clear_autocast_cache
_KEY_NAME = "AutocastCUDA"
_KEY = getattr(torch._C.DispatchKey, _KEY_NAME)
_without_autocast = partial(torch._C._ExcludeDispatchKeyGuard, torch._C.DispatchKeySet(_KEY))
_include = torch._C._dispatch_tls_set_dispatch_key_included


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What is computed in float32; of all other operations that CUDA's autocast knows, the operands
# are cast to the type that the program asks for.
_IN_FLOAT32 = _words(
    """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow
    softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm
    cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
    hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss
    margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
    multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
    linalg_matrix_sqrth
    """
)
# They return float32 for half-precision operands, unless the program gives a dtype.
_INTO_FLOAT32 = _words(
    """
    prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum
    """
)
# From float16 they are one kernel, with a flag (docs/model/norms-and-reductions.md).
_FROM_HALF = {
    torch.ops.aten.softmax.int: torch.ops.aten._softmax.default,
    torch.ops.aten.log_softmax.int: torch.ops.aten._log_softmax.default,
}
_WIDEST = _words(
    """
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot
    scatter_add
    """
)
_NORMS = {
    "norm.Scalar": torch.ops.aten.norm.ScalarOpt_dtype,
    "norm.ScalarOpt_dim": torch.ops.aten.norm.ScalarOpt_dim_dtype,
}


class _Casts(local):
    """A thread's casts of parameters, cached until its outermost autocast ends."""

    def __init__(self) -> None:
        self.by_id: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}


_CASTS = _Casts()


def install(patches: Patches) -> None:
    """Let ``torch.autocast("cuda")`` cast tensors of simulated devices."""
    kernels = _Kernels(patches)
    patches.set_all(
        torch, set_autocast_enabled=kernels.set_enabled, clear_autocast_cache=_clear_both_caches
    )


def cast_as_asked(*tensors: Tensor | None) -> tuple[Any, ...]:
    """Return operands cast as autocast casts those of such operations, if it is on."""
    if not torch.is_autocast_enabled(DEVICE_TYPE):
        return tensors
    with _without_autocast():
        cast: tuple[Any, ...] = _cast_to(torch.get_autocast_dtype(DEVICE_TYPE), tensors)
    return cast


class _Kernels:
    """A run's replacement of CUDA's autocast kernels, registered when autocast is first enabled."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._library: Any = None

    def set_enabled(self, *args: Any) -> None:
        """``torch.set_autocast_enabled``, with a device type or, as in old programs, without."""
        _set_enabled(*args)
        if len(args) == 1 or args[0] == DEVICE_TYPE:
            if args[-1] and self._library is None:
                self._replace()
            _include(_KEY, args[-1])

    def _replace(self) -> None:
        self._library = library_of_all("aten")
        self._patches.on_close(self._library._destroy)
        with warnings.catch_warnings():
            # PyTorch warns that the first one replaces another.
            warnings.simplefilter("ignore")
            for name in _names():
                self._library.impl(name, _kernel_of(name), _KEY_NAME)


def _names() -> list[str]:
    """Return the operations that CUDA's autocast casts in this release of PyTorch."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    names = torch._C._dispatch_get_all_op_names()
    result = [name for name in names if name.startswith("aten::") and has_kernel(name, _KEY_NAME)]
    return [item.removeprefix("aten::") for item in result]


def _kernel_of(name: str) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    func = getattr(getattr(torch.ops.aten, packet), overload or "default")
    if packet == "binary_cross_entropy":
        return _refused
    if packet in _INTO_FLOAT32:
        return partial(_call, _with_float32, func, _FROM_HALF.get(func))
    if name in _NORMS:
        return partial(_call, _norm_in_float32, func, _NORMS[name])
    if packet in _WIDEST:
        return partial(_call, _with_casts, func, _widest)
    if packet in _IN_FLOAT32 or packet == "norm" or "upsample" in packet:
        return partial(_call, _with_casts, func, lambda _: torch.float32)
    return partial(_call, _with_casts, func, lambda _: torch.get_autocast_dtype(DEVICE_TYPE))


_Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""The C++ behind an overload (``_op``: not its Python, which would count), and its operands."""


def _call(prepare: Callable[..., _Call], func: Any, how: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an operation with operands, or another one, as ``prepare`` says."""
    with _without_autocast():
        func, args, kwargs = in_cxx(prepare, func, how, args, kwargs)
        return func(*args, **kwargs)


def _with_casts(
    func: Any, dtype_of: Callable[[Any], torch.dtype], args: Any, kwargs: dict[str, Any]
) -> _Call:
    dtype = dtype_of((args, tuple(kwargs.values())))
    named = {name: _cast_to(dtype, value) for name, value in kwargs.items()}
    return func._op, _cast_to(dtype, args), named


def _widest(values: Any) -> torch.dtype:
    dtype = torch.get_autocast_dtype(DEVICE_TYPE)
    for value in values:
        if isinstance(value, (list, tuple)):
            dtype = torch.promote_types(dtype, _widest(value))
        elif _is_cast(value):
            dtype = torch.promote_types(dtype, value.dtype)
    return dtype


def _with_float32(func: Any, from_half: Any, args: Any, kwargs: dict[str, Any]) -> _Call:
    position = [argument.name for argument in func._schema.arguments].index("dtype")
    argument = args[position] if position < len(args) else kwargs.get("dtype")
    if argument is None and _is_cast(args[0]):
        if from_half is not None and args[0].dtype is torch.float16:
            return from_half._op, (*args[:position], True), {}
        args, kwargs = args[:position], {**kwargs, "dtype": torch.float32}
    return func._op, args, kwargs


def _norm_in_float32(func: Any, with_dtype: Any, args: Any, kwargs: dict[str, Any]) -> _Call:
    if not _is_cast(args[0]):
        return func._op, args, kwargs
    arguments = func._schema.arguments
    default_values = {
        argument.name: argument.default_value
        for argument in arguments
        if argument.has_default_value()
    }
    default_values.update(zip([argument.name for argument in arguments], args, strict=False))
    default_values.update(kwargs)
    order = [argument.name for argument in with_dtype._schema.arguments if argument.name != "dtype"]
    return with_dtype._op, tuple(default_values[name] for name in order), {"dtype": torch.float32}


def _refused(*_: Any, **__: Any) -> Any:
    raise UnsupportedTorchError(
        "binary_cross_entropy (BCELoss) under torch.autocast: half precision lacks the range, and "
        "CUDA refuses it too; use binary_cross_entropy_with_logits (BCEWithLogitsLoss)"
    )


def _is_cast(value: Any) -> bool:
    """Return whether autocast casts a value: a floating-point device tensor of at most 32 bits."""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.dtype is not torch.float64
        and value.device.type == DEVICE_TYPE
    )


def _cast_to(dtype: torch.dtype, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)([_cast_to(dtype, item) for item in value])
    if not _is_cast(value) or value.dtype is dtype:
        return value
    is_kept = (
        dtype is not torch.float32
        and value.dtype is torch.float32
        and value.requires_grad
        and value.is_leaf
        and not value._is_view()
        and torch.is_autocast_cache_enabled()
    )
    if not is_kept:
        return value.to(dtype)
    pair = _CASTS.by_id.get(id(value))
    if pair is not None and pair[0]() is value and pair[1].dtype is dtype:
        return pair[1]
    cast = value.to(dtype)
    _CASTS.by_id[id(value)] = weakref.ref(value), cast
    return cast


def _clear_both_caches() -> None:
    _CASTS.by_id.clear()
    _clear_cache()
