"""Transformer Engine's fused attention: cuDNN's kernels, in float16 and bfloat16.

Source: ``fused_attn`` of ``transformer_engine/common`` and ``attention.cpp`` of its extension. What
is asked beyond masks, windows and dropout is refused where the package asks which kernel there is,
so that it takes another, as it does on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.costs.attention import FlashLengths, flash_kernels
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.package_kernels.flash_calls import (
    Lengths,
    between,
    call_of,
    drawn,
    seeded,
)
from kernbench.torch_bridge.replaced.package_kernels.flash_values import (
    FlashOptions,
    attend,
    gradients,
)
from kernbench.torch_bridge.replaced.transformer_engine.kernels import (
    ENUMERATIONS,
    NAMESPACE,
    launch,
    name_of,
    refuse_quantized,
)

_OLDEST, _WIDE_FROM = 80, 90
_BACKENDS = ENUMERATIONS["NVTE_Fused_Attn_Backend"]
_HALVES = (5, 6)
"""``kFloat16`` and ``kBFloat16``."""


def get_fused_attn_backend(params: Any) -> tuple[Any, str]:
    """Return the kernel for attention of such parameters, or that there is none, and why."""
    reason = _refusal(params)
    kernel = "NVTE_F16_arbitrary_seqlen" if not reason else "NVTE_No_Backend"
    return _BACKENDS[kernel], reason


def _refusal(params: Any) -> str:
    capability = current().session.run.machine.spec.cuda_architecture or 0
    widest = 256 if capability >= _WIDE_FROM else 128
    layout = name_of("NVTE_QKV_Layout", params.qkv_layout)
    mask = name_of("NVTE_Mask_Type", params.attn_mask_type)
    bias = name_of("NVTE_Bias_Type", params.bias_type)
    softmax = name_of("NVTE_Softmax_Type", params.softmax_type)
    sizes = (params.head_dim_qk, params.head_dim_v)
    is_from_first = "CAUSAL" in mask and not params.bottom_right_diagonal
    reasons = {
        f"compute capability {capability}": capability < _OLDEST,
        "another dtype than float16 and bfloat16": int(params.qkv_dtype) not in _HALVES,
        f"heads of {sizes}": any(size % 8 or not 0 < size <= widest for size in sizes),
        f"layout {layout}": _format(layout) not in ("SBHD", "BSHD", "THD"),
        f"bias {bias}": bias != "NO_BIAS",
        f"softmax {softmax}": softmax != "VANILLA_SOFTMAX",
        "the largest logit": params.return_max_logit,
        "a diagonal from the first of other keys than queries": is_from_first
        and params.max_seqlen_q != params.max_seqlen_kv,
    }
    asked = [what for what, is_asked in reasons.items() if is_asked]
    return f"kernbench's fused attention has no kernel for {', '.join(asked)}" if asked else ""


def _format(layout: str) -> str:
    """Return the format of all three operands, e.g. ``SBHD`` of ``SB3HD``; empty for several."""
    formats = {part.translate(_NO_NUMBERS) for part in layout.split("_")}
    return formats.pop() if len(formats) == 1 else ""


_NO_NUMBERS = str.maketrans("", "", "23")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call of fused attention, whose tensors are seen as ``(batch, tokens, heads, size)``."""

    layout: str
    options: FlashOptions
    queries: int
    """The most queries of a sequence."""
    keys: int
    is_padded: bool

    def shown(self, x: Tensor) -> Tensor:
        """Return a tensor as batches; all tokens of sequences that follow each other are one."""
        if self.layout == "THD":
            return x.unsqueeze(0)
        return x.transpose(0, 1) if self.layout == "SBHD" else x

    def spans(self, ends: Tensor, padded: Tensor | None) -> list[tuple[int, slice]]:
        """Return the batch and the tokens of each sequence."""
        numbers = ends.tolist()
        starts = numbers if padded is None else padded.tolist()
        lengths = [last - first for first, last in pairwise(numbers)]
        if self.layout == "THD":
            pairs = zip(starts, lengths, strict=False)
            return [(0, slice(start, start + length)) for start, length in pairs]
        return [(number, slice(length)) for number, length in enumerate(lengths)]

    def timing(self, name: str, kernel: str, q: Tensor, k: Tensor, v: Tensor, ends: Any) -> Any:
        """Return what says how long a kernel takes on a SIP, for :func:`kernels.launch`."""
        size = v.shape[-1] if v.shape[-1] != q.shape[-1] else None
        names = f"{NAMESPACE}.{name}", f"cudnn_{kernel}"
        call = call_of(*names, q, k, self.options, value_dim=size)
        if self.layout == "THD" or self.is_padded:
            pairs = zip(ends[:2], (q, k), strict=True)
            lengths = Lengths(*(between(end, x.shape[:-2].numel()) for end, x in pairs))
        else:
            batch = self.shown(q).shape[0]
            lengths = Lengths(lambda: (self.queries,) * batch, lambda: (self.keys,) * batch)
        costs = current().session.costs

        def timing(_: Any) -> Callable[[int], Any]:
            return lambda sip_id: costs.of(
                flash_kernels, call.name, FlashLengths(call, lengths.pairs()), sip_id
            )

        return timing


def _call(
    layout: Any, mask: Any, window: Sequence[int], is_bottom_right: bool, scale: float,
    dropout: float, queries: int, keys: int,
) -> _Call:  # fmt: skip
    name = name_of("NVTE_Mask_Type", mask)
    options = FlashOptions(
        scale=scale,
        causal="CAUSAL" in name,
        left=window[0],
        right=-1 if "CAUSAL" in name else window[1],
        dropout=dropout,
    )
    return _Call(
        layout=_format(name_of("NVTE_QKV_Layout", layout)),
        options=options,
        queries=queries,
        keys=keys,
        is_padded="PADDING" in name,
    )


def fused_attn_fwd(
    max_seqlen_q: int, max_seqlen_kv: int, is_training: bool, attn_scale: float, p_dropout: float,
    set_zero: bool, qkv_layout: Any, o_format: Any, qkv_scale_inv_format: Any, bias_type: Any,
    attn_mask_type: Any, softmax_type: Any, window_size: Sequence[int],
    bottom_right_diagonal: bool, cu_seqlens_q: Tensor, cu_seqlens_kv: Tensor, q: Tensor, k: Tensor,
    v: Tensor, fake_dtype: Any, cu_seqlens_q_padded: Tensor | None,
    cu_seqlens_kv_padded: Tensor | None, page_table_k: Tensor | None, page_table_v: Tensor | None,
    s_quantizer: Any, o_quantizer: Any, bias: Tensor | None, softmax_offset: Tensor | None,
    rng_gen: Any, rng_elts_per_thread: int, return_max_logit: bool, cuda_graph: bool,
) -> list[Tensor]:  # fmt: skip
    """Return ``[results, logs of sums of exponentials, state of random numbers]``.

    Results have the format of the queries, and values' size. Logs are ``(batch, heads, queries,
    1)``, or ``(tokens, heads, 1)`` where sequences follow each other.
    """
    refuse_quantized("fused_attn_fwd", q, k, v, o_quantizer, page_table_k)
    call = _call(
        qkv_layout, attn_mask_type, window_size, bottom_right_diagonal, attn_scale, p_dropout,
        max_seqlen_q, max_seqlen_kv,
    )  # fmt: skip
    out = q.new_empty(*q.shape[:-1], v.shape[-1])
    heads, is_thd = q.shape[-2], call.layout == "THD"
    shape = (q.shape[0], heads, 1) if is_thd else (call.shown(q).shape[0], heads, max_seqlen_q, 1)
    lse, state = q.new_empty(shape, dtype=torch.float32), drawn(q, p_dropout)
    ends = (cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded)

    def compute(q: Tensor, k: Tensor, v: Tensor, *more: Any) -> None:
        *ends, state, out, lse = more
        options = seeded(call.options, state)
        batches = [call.shown(x) for x in (q, k, v, out)]
        sums = lse.permute(1, 2, 0) if is_thd else lse.squeeze(-1)
        sums = sums.transpose(0, 1) if is_thd else sums
        for batch, of_queries, of_keys in _parts(call, batches, ends):
            q, k, v, into = (x[batch] for x in batches)
            result = attend(q[:, of_queries], k[:, of_keys], v[:, of_keys], None, options)
            into[:, of_queries] = result[0]
            sums[batch, :, of_queries] = result[1]

    out_lse = (out, lse)
    timing = call.timing("fused_attn_fwd", "forward", q, k, v, ends)
    launch("fused_attn_fwd", compute, (q, k, v, *ends, state, *out_lse), out_lse, timing)
    return [out, lse, state] if is_training else [out]


def fused_attn_bwd(
    max_seqlen_q: int, max_seqlen_kv: int, attn_scale: float, p_dropout: float, set_zero: bool,
    qkv_layout: Any, o_format: Any, do_format: Any, dqkv_layout: Any, qkv_scale_inv_format: Any,
    do_scale_inv_format: Any, bias_type: Any, attn_mask_type: Any, softmax_type: Any,
    window_size: Sequence[int], bottom_right_diagonal: bool, deterministic: bool,
    cu_seqlens_q: Tensor, cu_seqlens_kv: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor,
    d_out: Tensor, fake_dtype: Any, kept: Sequence[Tensor],
    cu_seqlens_q_padded: Tensor | None, cu_seqlens_kv_padded: Tensor | None, s_quantizer: Any,
    dp_quantizer: Any, dqkv_quantizer: Any, cuda_graph: bool,
) -> list[Tensor | None]:  # fmt: skip
    """Return ``[gradients of queries, of keys, of values, None, None]``: no bias has one."""
    refuse_quantized("fused_attn_bwd", q, k, v, out, d_out, dqkv_quantizer)
    call = _call(
        qkv_layout, attn_mask_type, window_size, bottom_right_diagonal, attn_scale, p_dropout,
        max_seqlen_q, max_seqlen_kv,
    )  # fmt: skip
    written = _beside_each_other(name_of("NVTE_QKV_Layout", dqkv_layout), q, k, v)
    lse, state = kept[0], kept[-1]
    ends = (cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded)
    is_thd = call.layout == "THD"

    def compute(q: Tensor, k: Tensor, v: Tensor, o: Tensor, do: Tensor, *more: Any) -> None:
        *ends, lse, state, dq, dk, dv = more
        options = seeded(call.options, state)
        batches = [call.shown(x) for x in (q, k, v, o, do, dq, dk, dv)]
        sums = lse.permute(2, 1, 0) if is_thd else lse.squeeze(-1)
        if is_thd or call.is_padded:
            for target in batches[5:]:
                target.zero_()
        for batch, of_queries, of_keys in _parts(call, batches, ends):
            q, k, v, o, do, *targets = (x[batch] for x in batches)
            result = gradients(
                do[:, of_queries], q[:, of_queries], k[:, of_keys], v[:, of_keys],
                o[:, of_queries], sums[batch, :, of_queries], options,
            )  # fmt: skip
            for target, span, gradient in zip(
                targets, (of_queries, of_keys, of_keys), result[:3], strict=True
            ):
                target[:, span] = gradient

    operands = (q, k, v, out, d_out, *ends, lse, state, *written)
    timing = call.timing("fused_attn_bwd", "backward", q, k, v, ends)
    launch("fused_attn_bwd", compute, operands, written, timing)
    return [*written, None, None]


def _parts(
    call: _Call, batches: Sequence[Tensor], ends: Sequence[Tensor | None]
) -> Iterator[tuple[slice, slice, slice]]:
    """Yield batches with their queries and keys: all at once where they are of one length."""
    if call.layout != "THD" and not call.is_padded:
        yield slice(None), slice(None), slice(None)
        return
    of_queries, of_keys, padded_queries, padded_keys = ends
    assert of_queries is not None
    assert of_keys is not None
    pairs = zip(
        call.spans(of_queries, padded_queries), call.spans(of_keys, padded_keys), strict=True
    )
    for (number, queries), (_, keys) in pairs:
        yield slice(number, number + 1), queries, keys


def _beside_each_other(layout: str, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Return tensors for gradients that lie as their layout says, so that joining them is free."""
    parts = layout.split("_")
    if len(parts) == 3:
        return [x.new_empty(x.shape) for x in (q, k, v)]
    joined = (q, k, v) if len(parts) == 1 else (k, v)
    dim = -2 if parts[-1].endswith(("H3D", "H2D")) else -3
    shape = list(k.shape)
    shape.insert(len(shape) + dim + 1, len(joined))
    views = list(k.new_empty(shape).unbind(dim))
    return views if len(parts) == 1 else [q.new_empty(q.shape), *views]
