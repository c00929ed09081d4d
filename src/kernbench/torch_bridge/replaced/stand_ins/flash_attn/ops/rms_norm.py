"""RMS norm behind dropout and a residual."""

from __future__ import annotations

from functools import partial
from typing import Any

from flash_attn.ops.layer_norm import DropoutAddNorm, dropout_add_layer_norm
from flash_attn.ops.triton.layer_norm import RMSNorm, layer_norm_fn
from torch import Tensor

__all__ = ["DropoutAddRMSNorm", "RMSNorm", "dropout_add_rms_norm", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Any:
    """Return the norm over the last dim."""
    return layer_norm_fn(x, weight, None, eps=epsilon, is_rms_norm=True)


dropout_add_rms_norm = partial(dropout_add_layer_norm, is_rms_norm=True)
"""Returns the norm of ``dropout(x0) + residual``; takes what its layer norm takes."""


class DropoutAddRMSNorm(DropoutAddNorm):
    """A layer of :func:`dropout_add_rms_norm`."""

    def forward(self, x0: Tensor, residual: Tensor | None = None) -> Any:
        return self._normalized(dropout_add_rms_norm, x0, residual)
