"""The kinds of operations that a host takes different times for."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch


class HostPart(IntEnum):
    """What an operation is to the host that calls it."""

    VIEW = 0
    FACTORY = 1
    ELEMENTWISE = 2
    IN_PLACE = 3
    REDUCTION = 4
    PRODUCT = 5
    FOREACH = 6
    FREE = 7
    """It has a cost of its own elsewhere, or none: collectives, notes to PyTorch."""
    LOG_SUM_EXP = 8
    """It calls two reductions and seven elementwise operations below Python, one after another
    (``logsumexp_out_impl`` in ATen)."""
    PLANNED = 9
    """cuDNN does it, by a plan that is looked up; or three kernels do, with memory between them."""
    BATCH_NORM = 10
    """The same in training; one kernel without."""


_PRODUCTS = ("mm", "bmm", "matmul", "attention", "linear", "_rnn", "lstm", "gru")
_PLANNED = ("convolution", "batch_norm", "group_norm")
# Without a tag for reductions, although each reads a whole row per result.
_OVER_ROWS = ("softmax", "norm", "cumsum", "cumprod", "sort", "topk", "nll_loss", "cross_entropy",
              "pool")  # fmt: skip


def host_part(func: Any, full_name: str, *, is_free: bool) -> HostPart:
    """Return what an overload is to the host, by its schema, its tags and its name."""
    name = full_name.split(".")[1]
    if func.namespace not in ("aten", "prims"):
        return HostPart.FREE if is_free else HostPart.ELEMENTWISE
    if name.startswith(("_foreach", "_fused_adam", "_fused_sgd", "_amp_foreach")):
        return HostPart.FOREACH
    if is_free:
        is_factory = name.startswith(("empty", "new_empty"))
        return HostPart.FACTORY if is_factory else HostPart.VIEW
    if not name.startswith("_thnn_fused") and any(product in name for product in _PRODUCTS):
        return HostPart.PRODUCT
    if name == "native_batch_norm":
        return HostPart.BATCH_NORM
    if any(planned in name for planned in _PLANNED):
        return HostPart.PLANNED
    if name == "logsumexp":
        return HostPart.LOG_SUM_EXP
    if torch.Tag.reduction in func.tags or any(row in name for row in _OVER_ROWS):
        return HostPart.REDUCTION
    return HostPart.IN_PLACE if name.endswith("_") else HostPart.ELEMENTWISE
