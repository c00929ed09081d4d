"""Cross entropy as one kernel."""

from __future__ import annotations

from typing import Any

import torch
from flash_attn.ops.triton.cross_entropy import cross_entropy_loss
from torch import Tensor


class CrossEntropyLoss(torch.nn.Module):
    """The loss of logits ``(rows, classes)``."""

    def __init__(
        self,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        inplace_backward: bool = False,
        process_group: Any = None,
        return_z_loss: bool = False,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "none", "sum"):
            raise NotImplementedError("Only support reduction = 'mean' or 'none' or 'sum'")
        self.ignore_index, self.reduction = ignore_index, reduction
        self.return_z_loss = return_z_loss
        self.options = {
            "label_smoothing": label_smoothing,
            "logit_scale": logit_scale,
            "lse_square_scale": lse_square_scale,
            "process_group": process_group,
        }

    def forward(self, input: Tensor, target: Tensor, precomputed_lse: Any = None) -> Any:
        losses, of_lse = cross_entropy_loss(
            input, target, precomputed_lse, ignore_index=self.ignore_index, **self.options
        )
        reduced = self._reduced(losses, target)
        return (reduced, self._reduced(of_lse, target)) if self.return_z_loss else reduced

    def _reduced(self, losses: Tensor, target: Tensor) -> Tensor:
        if self.reduction == "none":
            return losses
        total = losses.sum()
        return total / (target != self.ignore_index).sum() if self.reduction == "mean" else total
