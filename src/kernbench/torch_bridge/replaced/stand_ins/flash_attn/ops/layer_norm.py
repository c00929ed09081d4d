"""Layer norm behind dropout and a residual."""

from __future__ import annotations

from typing import Any

import torch
from flash_attn.ops.triton.layer_norm import layer_norm_fn
from torch import Tensor


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Any:
    """Return the norm over the last dim."""
    return layer_norm_fn(x, weight, bias, eps=epsilon)


def dropout_add_layer_norm(
    x0: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    dropout_p: float,
    epsilon: float,
    rowscale: Tensor | None = None,
    layerscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
    *,
    is_rms_norm: bool = False,
) -> Any:
    """Return the norm of ``dropout(x0) + residual``; with ``prenorm`` the sum, too."""
    if layerscale is not None:
        raise NotImplementedError("flash_attn: layerscale is not a part of kernbench's stand-in")
    return layer_norm_fn(
        x0, weight, bias, residual, eps=epsilon, dropout_p=dropout_p, rowscale=rowscale,
        prenorm=prenorm, residual_in_fp32=residual_in_fp32,
        return_dropout_mask=return_dropout_mask, is_rms_norm=is_rms_norm,
    )  # fmt: skip


class DropoutAddNorm(torch.nn.Module):
    """A layer of one of the norms, with weights and, for some, a bias."""

    def __init__(
        self,
        hidden_size: int,
        prenorm: bool = False,
        p: float = 0.0,
        eps: float = 1e-5,
        residual_in_fp32: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.prenorm, self.p, self.eps, self.residual_in_fp32 = prenorm, p, eps, residual_in_fp32
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)


class DropoutAddLayerNorm(DropoutAddNorm):
    """A layer of :func:`dropout_add_layer_norm`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bias = torch.nn.Parameter(torch.zeros_like(self.weight))

    def forward(self, x0: Tensor, residual: Tensor | None = None) -> Any:
        return dropout_add_layer_norm(
            x0, residual, self.weight, self.bias, self.p if self.training else 0.0, self.eps,
            prenorm=self.prenorm, residual_in_fp32=self.residual_in_fp32,
        )  # fmt: skip
