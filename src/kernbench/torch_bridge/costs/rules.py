"""What operations that stream their operands do per element, and which bytes they touch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Any

import torch

from kernbench.commands import MathClass
from kernbench.inputs import shipped_yaml


class Reads(Enum):
    """Which bytes of its tensor arguments an operation reads."""

    ALL = auto()
    SOURCES = auto()
    """All operands but those that it overwrites."""
    FEW = auto()
    """Some elements of its largest operand, and all others."""


@dataclass(frozen=True, kw_only=True)
class CostRule:
    """How an operation is costed; the work is per element of its largest list or tensor."""

    work: tuple[tuple[MathClass, int], ...] = ()
    reads: Reads = Reads.ALL
    passes: int = 1
    """The number of passes over its operands."""
    clones: bool = False
    """Whether the form that makes a result copies its operand first, and changes the copy."""
    is_known: bool = True
    """Whether the work is modeled; if not, the report says so."""
    is_stream: bool = True
    """Whether its kernel goes over its operands as a stream does; if not, their bytes are all that
    is modeled of it, and its range is wide."""
    rereads: tuple[int, ...] = ()
    """Positions of operands that a second pass reads again, behind one that sums them up."""
    rereads_if: int | None = None
    """The position of an argument that says whether it does; None where it always does."""
    copies: tuple[int, ...] = ()
    """Positions of operands that PyTorch makes contiguous first, by kernels of their own."""

    def has_second_pass(self, args: Any) -> bool:
        """Return whether a call reads some operands again."""
        if not self.rereads:
            return False
        return self.rereads_if is None or bool(args[self.rereads_if])


_SIMPLE, _REDUCE = MathClass.SIMPLE, MathClass.REDUCE


def names(text: str) -> frozenset[str]:
    """Return names with their namespace, ATen's where they have none."""
    return frozenset(name if "." in name else f"aten.{name}" for name in text.split())


_BY_NAME = {
    name: tuple((MathClass[kind.upper()], count) for kind, count in entry["work"].items())
    for entry in shipped_yaml("kernbench.torch_bridge.costs", "work.yaml")
    for name in names(entry["names"])
}
_OVERWRITES = names("copy fill zero normal uniform random _foreach_copy _foreach_zero")
# A radix select reads the keys once for each 8 of their bits; of 4 bytes.
_CHOOSES = names("topk kthvalue median nanmedian mode")
_CHOICE_PASSES = 4
# Sums over a whole batch are there when all of it was read once. Norms of rows keep their row.
_REREADS = {
    "aten.native_batch_norm": (0,),
    "aten.native_batch_norm_backward": (0, 1),
    "aten.native_group_norm": (0,),
}
TRAINS = {"aten.native_batch_norm": 5, "aten.native_batch_norm_backward": 7}
"""Which argument says that a norm is of the batch; if not, it is of what was seen before."""
_IN_ROWS: dict[str, tuple[int, ...]] = dict.fromkeys(
    names("native_layer_norm _fused_rms_norm _softmax _log_softmax"), (0,)
)
_IN_ROWS |= dict.fromkeys(
    names(
        "native_layer_norm_backward _fused_rms_norm_backward _softmax_backward_data "
        "_log_softmax_backward_data"
    ),
    (0, 1),
)
_CLONES = names("masked_fill masked_scatter")
_FEW = names("nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward")
_UNKNOWN = CostRule(is_known=False, is_stream=False)
# Elements that are searched for, counted, sampled, spread over others, or summed by hand.
_BY_BYTES_ALONE = names(
    "isin bucketize searchsorted nonzero _unique2 bincount histc renorm trace put randperm "
    "multinomial poisson binomial im2col col2im grid_sampler_2d_backward "
    "upsample_bilinear2d_backward upsample_bicubic2d_backward _embedding_bag "
    "_embedding_bag_backward embedding_dense_backward adaptive_max_pool2d "
    "adaptive_max_pool2d_backward max_pool2d_with_indices_backward "
    "max_pool3d_with_indices_backward avg_pool2d_backward avg_pool3d_backward "
    "_adaptive_avg_pool2d_backward multi_margin_loss multi_margin_loss_backward _cdist_forward "
    "_cdist_backward _ctc_loss _ctc_loss_backward"
)


def plain_name(func: Any) -> str:
    """Return the name of an operation, whose forms in place are costed as the others."""
    name: str = func._schema.name.replace("::", ".").rstrip("_")
    return name


@cache
def rule_of(func: Any) -> CostRule:
    """Return how an overload is costed."""
    name = plain_name(func)
    if name in _OVERWRITES:
        return CostRule(reads=Reads.SOURCES)
    if name in _FEW:
        return CostRule(reads=Reads.FEW)
    if name in _CLONES:
        return CostRule(work=((_SIMPLE, 1),), clones=not func._schema.is_mutable)
    if name in _CHOOSES:
        return CostRule(work=((_SIMPLE, 1), (_REDUCE, 1)), passes=_CHOICE_PASSES)
    work = _BY_NAME.get(name)
    if work is not None:
        return CostRule(
            work=work,
            rereads=_REREADS.get(name, ()),
            rereads_if=TRAINS.get(name),
            copies=_IN_ROWS.get(name, ()),
            is_stream=name not in _BY_BYTES_ALONE,
        )
    return CostRule(work=((_SIMPLE, 1),)) if torch.Tag.pointwise in func.tags else _UNKNOWN


_NORMS_BACKWARD = frozenset(
    {"aten.native_layer_norm_backward", "aten.native_group_norm_backward"}
    | {"aten._fused_rms_norm_backward"}
)
"""Gradients of inputs and of weights are kernels of their own, which read the same tensors."""


def reads_of_rows(name: str, args: Any) -> int:
    """Return how many times an operation reads its operands."""
    wanted = args[-1] if name in _NORMS_BACKWARD else None
    return 2 if isinstance(wanted, (list, tuple)) and any(wanted[1:]) else 1
