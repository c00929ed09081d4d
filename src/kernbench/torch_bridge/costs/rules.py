"""What operations that stream their operands do per element, and which bytes they touch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Any

import torch

from kernbench.commands import MathClass


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
_DIVIDE, _TRANSCENDENTAL = MathClass.DIVIDE, MathClass.TRANSCENDENTAL
_WORK: dict[str, Mapping[MathClass, int]] = {
    "div reciprocal remainder fmod floor_divide addcdiv _foreach_div _foreach_reciprocal "
    "_foreach_addcdiv": {_DIVIDE: 1},
    "exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sigmoid erf erfc sqrt rsqrt pow "
    "softplus sinh cosh atan atan2 acos asin _foreach_sqrt _foreach_rsqrt _foreach_exp "
    "_foreach_log _foreach_pow _foreach_tanh _foreach_sigmoid": {_TRANSCENDENTAL: 1},
    "silu gelu mish elu celu selu log_sigmoid_forward sigmoid_backward tanh_backward": {
        _TRANSCENDENTAL: 1,
        _SIMPLE: 2,
    },
    "silu_backward gelu_backward mish_backward elu_backward softplus_backward": {
        _TRANSCENDENTAL: 1,
        _SIMPLE: 5,
    },
    "_thnn_fused_lstm_cell _thnn_fused_gru_cell": {_TRANSCENDENTAL: 1, _SIMPLE: 4},
    "_thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell_backward": {_SIMPLE: 4},
    "_softmax _log_softmax _safe_softmax logsumexp": {
        _TRANSCENDENTAL: 1,
        _REDUCE: 2,
        _SIMPLE: 1,
        _DIVIDE: 1,
    },
    "_softmax_backward_data _log_softmax_backward_data": {_SIMPLE: 3, _REDUCE: 1},
    "native_layer_norm native_group_norm native_batch_norm var var_mean std std_mean": {
        _SIMPLE: 4,
        _REDUCE: 2,
    },
    "_fused_rms_norm": {_SIMPLE: 3, _REDUCE: 1},
    "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward "
    "_fused_rms_norm_backward": {_SIMPLE: 6, _REDUCE: 3},
    "sum mean prod amax amin max min argmax argmin any all nansum cumsum cumprod norm "
    "linalg_vector_norm _foreach_norm aminmax count_nonzero dot vdot": {_REDUCE: 1},
    "embedding_dense_backward mse_loss_backward native_dropout native_dropout_backward "
    "_foreach_add _foreach_sub _foreach_mul _foreach_lerp _foreach_addcmul _foreach_neg "
    "_foreach_abs _foreach_maximum _foreach_minimum _foreach_clamp_min _foreach_clamp_max "
    "_foreach_sign _amp_foreach_non_finite_check_and_unscale tril triu": {_SIMPLE: 1},
    "_fused_adam _fused_adamw": {_SIMPLE: 9, _DIVIDE: 2, _TRANSCENDENTAL: 1},
    "_fused_sgd _fused_adagrad": {_SIMPLE: 3},
    "_to_copy": {MathClass.CONVERT: 1},
    "masked_fill masked_scatter leaky_relu_backward threshold_backward hardtanh_backward "
    "hardsigmoid_backward hardswish hardswish_backward softshrink_backward _prelu_kernel "
    "_prelu_kernel_backward rrelu_with_noise rrelu_with_noise_backward isin bucketize searchsorted "
    "nonzero _unique2 bincount histc allclose linalg_cross renorm _embedding_bag "
    "_embedding_bag_backward max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d "
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward "
    "adaptive_max_pool2d_backward avg_pool2d_backward avg_pool3d_backward "
    "_adaptive_avg_pool2d_backward multi_margin_loss_backward": {_SIMPLE: 1},
    "avg_pool2d avg_pool3d _adaptive_avg_pool2d cummax cummin multi_margin_loss _cdist_forward "
    "_cdist_backward batch_norm_stats": {_SIMPLE: 1, _REDUCE: 1},
    "mse_loss smooth_l1_loss huber_loss smooth_l1_loss_backward huber_loss_backward "
    "batch_norm_elemt batch_norm_backward_reduce batch_norm_backward_elemt "
    "batch_norm_gather_stats_with_counts": {_SIMPLE: 4, _REDUCE: 1},
    "binary_cross_entropy binary_cross_entropy_with_logits": {
        _TRANSCENDENTAL: 2,
        _SIMPLE: 4,
        _REDUCE: 1,
    },
    "binary_cross_entropy_backward": {_DIVIDE: 1, _SIMPLE: 4},
    "glu glu_backward log_sigmoid_backward logcumsumexp _ctc_loss _ctc_loss_backward": {
        _TRANSCENDENTAL: 2,
        _SIMPLE: 3,
    },
    "upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d "
    "upsample_linear1d_backward grid_sampler_2d grid_sampler_2d_backward": {_SIMPLE: 8},
    "upsample_trilinear3d upsample_bicubic2d upsample_bicubic2d_backward": {_SIMPLE: 32},
    "geometric cauchy log_normal poisson binomial logspace polar": {_TRANSCENDENTAL: 1},
    "upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward "
    "upsample_nearest3d _upsample_nearest_exact2d im2col col2im pixel_shuffle pixel_unshuffle "
    "channel_shuffle reflection_pad1d reflection_pad1d_backward reflection_pad2d "
    "reflection_pad2d_backward replication_pad2d replication_pad2d_backward diagonal_copy "
    "diagonal_backward unfold_backward tril_indices triu_indices block_diag put _assert_async "
    "_linalg_check_errors": {},
    "cat stack clone constant_pad_nd repeat roll flip arange linspace eye _foreach_copy "
    "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor "
    "split_with_sizes_copy _chunk_cat select_backward slice_backward unfold_copy one_hot "
    "fsdp.all_gather_copy_in fsdp.split_with_sizes_copy fsdp.chunk_cat "
    "fsdp.chunk_cat_mixed_dtype "
    "_amp_update_scale random normal rand randn randint bernoulli multinomial randperm "
    "rand_like randn_like randint_like uniform exponential trace": {},
}


def names(text: str) -> frozenset[str]:
    """Return names with their namespace, ATen's where they have none."""
    return frozenset(name if "." in name else f"aten.{name}" for name in text.split())


_BY_NAME = {name: (*work.items(),) for text, work in _WORK.items() for name in names(text)}
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
