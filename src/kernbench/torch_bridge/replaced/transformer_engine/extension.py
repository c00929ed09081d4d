"""What Transformer Engine's extension module has: enumerations, kernels, facts of libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from kernbench.inputs import shipped_yaml
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.processes.call_counts import in_cxx, unseen
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.transformer_engine import (
    attention,
    fp8,
    kernels,
    optimizers,
    products,
    rows,
)
from kernbench.torch_bridge.replaced.transformer_engine.kernels import ENUMERATIONS

_CUBLAS, _CUDNN = 130100, 91200
_STREAMS = 4
_LACKING = shipped_yaml(
    "kernbench.torch_bridge.replaced.transformer_engine", "lacking.yaml"
).split()
"""What the module of 2.20 has besides, and kernbench does not define."""


_BY_NAME: tuple[Callable[..., Any], ...] = (
    *(fp8.quantize, fp8.dequantize, fp8.create_empty_quantized_tensor, fp8.split_quantize),
    *(fp8.multi_tensor_quantize, fp8.bgrad_quantize, fp8.compute_amax, fp8.fp8_transpose),
    fp8.fused_amax_and_scale_update_after_reduction,
    *(products.generic_gemm, products.te_general_grouped_gemm),
    *(rows.layernorm_fwd, rows.layernorm_bwd, rows.rmsnorm_fwd, rows.rmsnorm_bwd),
    *(rows.rmsnorm_bwd_add, rows.fused_rope_forward, rows.fused_rope_backward),
    *(attention.get_fused_attn_backend, attention.fused_attn_fwd, attention.fused_attn_bwd),
    *(optimizers.multi_tensor_adam, optimizers.multi_tensor_sgd, optimizers.multi_tensor_scale),
    *(optimizers.multi_tensor_l2norm, optimizers.multi_tensor_unscale_l2norm),
)


class _CommOverlap:
    """A communicator of userbuffers, which simulated devices do not have."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse(type(self).__name__.lstrip("_"))


class _Fp8Meta:
    """The numbers of a delayed scaling recipe."""

    scale: Tensor
    scale_inv: Tensor
    amax_history: Tensor


def install(patches: Patches) -> None:
    """Open the namespace of the kernels' names."""
    kernels.install(patches)


def names() -> dict[str, Any]:
    """Return what the module has, by name."""
    functions: dict[str, Callable[..., Any]] = {
        **{function.__name__: function for function in _BY_NAME},
        "swap_first_dims": _swap_first_dims,
        "bulk_allocate": _bulk_allocate,
        **rows.activations(),
        **rows.softmaxes(),
        "multi_tensor_adam_capturable": optimizers.multi_tensor_adam,
        "multi_tensor_adam_capturable_master": optimizers.multi_tensor_adam,
        "multi_tensor_scale_tensor": optimizers.multi_tensor_scale,
        "get_cublasLt_version": lambda: _CUBLAS,
        "get_cudnn_version": lambda: _CUDNN,
        "get_num_cublas_streams": lambda: _STREAMS,
        "get_stream_priority_range": lambda device_id=-1: (0, -5),
        "device_supports_multicast": lambda device_id=-1: False,
        "ubuf_built_with_mpi": lambda: False,
        "nvte_built_with_cublasmp": lambda: False,
    }
    return {
        **ENUMERATIONS,
        **{name: _as_cxx(function) for name, function in functions.items()},
        **{name: lacking(name) for name in _LACKING},
        "CommOverlap": _CommOverlap,
        "CommOverlapP2P": _CommOverlap,
        "CommOverlapHelper": _CommOverlap,
        "CommOverlapCore": _CommOverlap,
        "FP8TensorMeta": _Fp8Meta,
    }


def lacking(name: str) -> Callable[..., NoReturn]:
    """Return a function that says that kernbench has no definition of it."""
    return unseen(partial(_refuse, name))


def _as_cxx(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose Python is C++ of the extension."""
    without_gradients = torch.no_grad()(function)

    def of_extension(*args: Any, **kwargs: Any) -> Any:
        return in_cxx(partial(without_gradients, *args, **kwargs))

    return of_extension


def _refuse(name: str, *args: Any, **kwargs: Any) -> NoReturn:
    current().session.lacking_operators[f"{kernels.NAMESPACE}.{name}"] = None
    raise UnsupportedTorchError(
        f"transformer_engine_torch.{name}: kernbench has no definition of this function of "
        "Transformer Engine's extension, whose CUDA C++ no simulated device runs; choose another "
        "path of the package (a recipe in bfloat16, an option without fusion)"
    )


def _swap_first_dims(tensor: Tensor, *, out: Tensor | None = None) -> Tensor:
    shape = (tensor.shape[1], tensor.shape[0], *tensor.shape[2:])
    into = tensor.new_empty(shape) if out is None else out
    return into.copy_(tensor.transpose(0, 1))


def _bulk_allocate(
    shapes: Sequence[Sequence[int]], dtypes: Sequence[torch.dtype], device: Any = None, *_: Any
) -> list[Tensor]:
    where = "cuda" if device is None else device
    return [
        torch.empty(list(shape), dtype=dtype, device=where)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
