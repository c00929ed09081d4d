"""What a GPU's operations of attention compute, on the host (ADR-0220).

Flash and memory-efficient attention, forward and backward, for tensors with data. The host's own
flash operation does it where it can; dropout, gradients of biases, and values of another size than
queries are computed by definition, in float32 or, for it, in float64. Layouts of results are those
that PyTorch's descriptions of these operations give, as compiled code relies on them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.of_all import OperatorCall, implement, library_of_all
from kernbench.torch_bridge.replaced.attention.operations import ALIGNED_BIAS, for_each_head

_aten: Any = torch.ops.aten
_LSE_ROWS = 32
"""The multiple to which memory-efficient attention pads rows of the log of sums."""


def install(patches: Patches) -> None:
    """Let the host compute them."""
    library = library_of_all("aten")
    patches.on_close(library._destroy)
    kernels = {
        "_scaled_dot_product_flash_attention": _flash,
        "_scaled_dot_product_flash_attention_backward": _flash_backward,
        "_scaled_dot_product_efficient_attention": _efficient,
        "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    }
    implement(library, kernels, "CPU")


def _flash(call: OperatorCall) -> tuple[Any, ...]:
    query, seed = call.query, _seed(call.dropout_p)
    out, lse = _forward(call, *_from_last(call), seed)
    lies_alike = out.stride() == torch.empty_like(query, device="meta").stride()
    tensor = out if lies_alike else torch.empty_like(query).copy_(out)
    state = torch.tensor([seed, 0], dtype=torch.int64).to(torch.uint64)
    unused, nothing = torch.zeros((), dtype=torch.uint64), query.new_empty(0)
    return tensor, lse, None, None, query.size(2), call.key.size(2), state, unused, nothing


def _flash_backward(call: OperatorCall) -> tuple[Tensor, ...]:
    seed = int(call.philox_seed.to(torch.int64).flatten()[0]) if call.dropout_p else 0
    backward = _backward(call, call.grad_out, call.logsumexp, *_from_last(call), seed)
    return tuple(
        torch.empty_like(to).copy_(item)
        for item, to in zip(backward, (call.query, call.key, call.value), strict=False)
    )


def _efficient(call: OperatorCall) -> tuple[Tensor, ...]:
    seed, queries = _seed(call.dropout_p), call.query.size(2)
    out, lse = _forward(call, call.attn_bias, call.is_causal, seed)
    rows = -(-queries // _LSE_ROWS) * _LSE_ROWS if call.compute_log_sumexp else 0
    kept = lse.new_full((*lse.shape[:2], rows), float("inf"))
    if rows:
        kept[..., :queries] = lse
    return _by_row(out), kept, torch.tensor(seed), torch.tensor(0)


def _efficient_backward(call: OperatorCall) -> tuple[Tensor | None, ...]:
    bias, lse = call.attn_bias, call.logsumexp[..., : call.query.size(2)]
    of_bias = bias is not None and bool(call.grad_input_mask[3])
    seed = int(call.philox_seed) if call.dropout_p else 0
    *result, grad = _backward(call, call.grad_out_, lse, bias, call.is_causal, seed, of_bias)
    return (*map(_by_row, result), None if grad is None else _in_aligned_rows(grad))


def _from_last(call: OperatorCall) -> tuple[Tensor | None, bool]:
    """Return flash attention's causal mask as a bias where it is aligned with the last key alone.

    It is that of the host, aligned with the first, for as many queries as keys.
    """
    queries, keys = call.query.size(2), call.key.size(2)
    if not call.is_causal or queries == keys:
        return None, call.is_causal
    seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    zeros = torch.zeros(queries, keys, dtype=call.query.dtype)
    return zeros.masked_fill(~seen, float("-inf")), False


def _seed(dropout_p: float) -> int:
    """Return a number from which dropout is drawn; the backward pass draws the same from it."""
    return int(torch.randint(1 << 62, ())) if dropout_p else 0


def _forward(
    call: OperatorCall, bias: Tensor | None, is_causal: bool, seed: int
) -> tuple[Tensor, Tensor]:
    """Return attention, and the log of each query's sum."""
    query, dropout_p, scale = call.query, call.dropout_p, call.scale
    key, value = for_each_head(query, call.key), for_each_head(query, call.value)
    if not dropout_p and query.size(-1) == value.size(-1):
        out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, attn_mask=bias, scale=scale
        )
        # The host's has queries before heads in memory.
        return out, lse.contiguous() if lse.shape == query.shape[:3] else lse.transpose(1, 2)
    scores = _scores(query, key, bias, is_causal, scale)
    lse = scores.logsumexp(-1)
    shares = _shares(scores, lse)
    if dropout_p:
        shares = shares * _kept(shares, dropout_p, seed)
    return (shares @ _wide(value)).to(query.dtype), lse


def _backward(
    call: OperatorCall,
    grad_out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    is_causal: bool,
    seed: int,
    of_bias: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of queries, keys, values, and of the bias if it is asked for."""
    query, key, value, out = call.query, call.key, call.value, call.out
    dropout_p, scale = call.dropout_p, call.scale
    every_key, every_value = for_each_head(query, key), for_each_head(query, value)
    if not dropout_p and not of_bias and query.size(-1) == value.size(-1):
        gradients = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_out, query, every_key, every_value, out, lse, 0.0, is_causal,
            attn_mask=bias, scale=scale,
        )  # fmt: skip
        return (gradients[0], _summed(gradients[1], key), _summed(gradients[2], value), None)
    grad = _wide(grad_out)
    shares = _shares(_scores(query, every_key, bias, is_causal, scale), lse)
    of_shares = grad @ _wide(every_value).transpose(-2, -1)
    dropped = shares
    if dropout_p:
        kept = _kept(shares, dropout_p, seed)
        dropped, of_shares = shares * kept, of_shares * kept
    of_value = dropped.transpose(-2, -1) @ grad
    of_scores = shares * (of_shares - (grad * _wide(out)).sum(-1, keepdim=True))
    factor = _factor(query, scale)
    of_query = of_scores @ _wide(every_key) * factor
    of_key = of_scores.transpose(-2, -1) @ _wide(query) * factor
    return (
        of_query.to(query.dtype),
        _summed(of_key, key).to(key.dtype),
        _summed(of_value, value).to(value.dtype),
        of_scores.to(bias.dtype) if of_bias and bias is not None else None,
    )


def _wide(operand: Tensor) -> Tensor:
    return operand if operand.dtype is torch.float64 else operand.float()


def _factor(query: Tensor, scale: float | None) -> float:
    return query.size(-1) ** -0.5 if scale is None else scale


def _scores(
    query: Tensor, key: Tensor, bias: Tensor | None, is_causal: bool, scale: float | None
) -> Tensor:
    scores = _wide(query) @ _wide(key).transpose(-2, -1) * _factor(query, scale)
    if bias is not None:
        scores = scores + bias
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    return scores


def _shares(scores: Tensor, lse: Tensor) -> Tensor:
    """Return the softmax of scores; nothing where a query sees no key."""
    return (scores - lse.unsqueeze(-1)).exp().nan_to_num(0.0)


def _kept(shares: Tensor, dropout_p: float, seed: int) -> Tensor:
    """Return what dropout multiplies shares by."""
    drawn = torch.rand(shares.shape, generator=torch.Generator().manual_seed(seed))
    return (drawn >= dropout_p).float() / (1 - dropout_p) if dropout_p < 1 else drawn * 0


def _summed(grad: Tensor, to: Tensor) -> Tensor:
    """Return the gradient of what heads share."""
    group = grad.size(1) // to.size(1)
    return grad if group == 1 else grad.unflatten(1, (-1, group)).sum(2)


def _in_aligned_rows(bias: Tensor) -> Tensor:
    keys = bias.size(-1)
    room = bias.new_empty((*bias.shape[:-1], -(-keys // ALIGNED_BIAS) * ALIGNED_BIAS))
    return room[..., :keys].copy_(bias)


def _by_row(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory has rows of all heads, as memory-efficient attention's."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)
