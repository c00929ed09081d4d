"""Layer norms with what is added before, as one kernel; forward and backward."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout

from kernbench.torch_bridge.replaced.package_kernels.launching import fused


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> Any:
    """Return the norm of ``x + residual`` over the last dim; with ``prenorm`` the sum, too."""
    refused = {
        "x1": x1,
        "weight1": weight1,
        "bias1": bias1,
        "rowscale": rowscale,
        "out": out,
        "residual_out": residual_out,
        "return_dropout_mask": return_dropout_mask or None,
    }
    for name, value in refused.items():
        if value is not None:
            raise NotImplementedError(
                f"flash_attn: {name} of its norms is not a part of kernbench's stand-in"
            )
    x = dropout(x, dropout_p) if dropout_p else x
    wide = residual_in_fp32 if residual is None else residual.dtype is torch.float32
    dtype_of_sum = torch.float32 if wide else x.dtype if residual is None else residual.dtype

    def define(x: Tensor, weight: Tensor, bias: Any, residual: Any) -> Any:
        total = x.float() if residual is None else x.float() + residual.float()
        if is_rms_norm:
            result = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
        else:
            variance, mean = torch.var_mean(total, -1, correction=0, keepdim=True)
            result = (total - mean) * torch.rsqrt(variance + eps)
        result = result * (weight.float() + zero_centered_weight)
        result = result if bias is None else result + bias.float()
        result = result.to(out_dtype or x.dtype)
        return (result, total.to(dtype_of_sum)) if prenorm else result

    return fused("flash_attn.layer_norm", define, x, weight, bias, residual)


def rms_norm_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *value: Any, **more: Any
) -> Any:
    """Return the same by the root mean square."""
    return partial(layer_norm_fn, is_rms_norm=True)(x, weight, bias, *value, **more)


class RMSNorm(torch.nn.Module):
    """A layer of :func:`rms_norm_fn`."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        dropout_p: float = 0.0,
        zero_centered_weight: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.eps, self.dropout_p = eps, dropout_p
        self.zero_centered_weight = zero_centered_weight
        result = torch.zeros if zero_centered_weight else torch.ones
        self.weight = torch.nn.Parameter(result(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None = None,
        prenorm: bool = False,
        residual_in_fp32: bool = False,
    ) -> Any:
        return rms_norm_fn(
            x, self.weight, self.bias, residual=residual, eps=self.eps,
            dropout_p=self.dropout_p if self.training else 0.0, prenorm=prenorm,
            residual_in_fp32=residual_in_fp32, zero_centered_weight=self.zero_centered_weight,
        )  # fmt: skip
