"""RMS norm behind dropout and a residual."""

from __future__ import annotations

from typing import Any

from flash_attn.ops.layer_norm import DropoutAddNorm
from flash_attn.ops.triton.layer_norm import RMSNorm, layer_norm_fn
from torch import Tensor

__all__ = ["DropoutAddRMSNorm", "RMSNorm", "dropout_add_rms_norm", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Any:
    """Return the norm over the last dim."""
    return layer_norm_fn(x, weight, None, eps=epsilon, is_rms_norm=True)


def dropout_add_rms_norm(
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
) -> Any:
    """Return the norm of ``dropout(x0) + residual``; with ``prenorm`` the sum, too."""
    if layerscale is not None:
        raise NotImplementedError("flash_attn: layerscale is not a part of kernbench's stand-in")
    return layer_norm_fn(
        x0, weight, bias, residual, eps=epsilon, dropout_p=dropout_p, rowscale=rowscale,
        prenorm=prenorm, residual_in_fp32=residual_in_fp32,
        return_dropout_mask=return_dropout_mask, is_rms_norm=True,
    )  # fmt: skip


class DropoutAddRMSNorm(DropoutAddNorm):
    """A layer of :func:`dropout_add_rms_norm`."""

    def forward(self, x0: Tensor, residual: Tensor | None = None) -> Any:
        return self._normalized(dropout_add_rms_norm, x0, residual)
