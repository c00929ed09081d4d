"""Routing to experts, sorting of choices by expert, and sums over a token's experts.

Source: the definitions that vLLM's own tests compare its kernels with (``tests/kernels/moe``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from kernbench.torch_bridge.replaced.extension_modules.definitions import (
    OperatorAsked,
    as_routing,
    defines,
    streams,
)


def _choose(
    scores: Tensor, count: int, bias: Tensor | None, renormalize: bool
) -> tuple[Tensor, Tensor]:
    """Return the weights and numbers of the experts with the largest scores, a bias added."""
    ids = (scores if bias is None else scores + bias.float()).topk(count, -1).indices
    weights = scores.gather(1, ids)
    return weights / weights.sum(-1, keepdim=True) if renormalize else weights, ids


def _route(
    asked: OperatorAsked,
    scored: Any,
    gating: Tensor,
    bias: Tensor | None,
    renormalize: bool,
    by: float,
) -> None:
    def compute(
        topk_weights: Tensor,
        topk_indices: Tensor,
        token_expert_indices: Tensor,
        gating_output: Tensor,
        bias: Tensor | None,
        is_padding: Tensor | None,
        **how: Any,
    ) -> None:
        scores = scored(gating_output.float())
        weights, ids = _choose(scores, topk_weights.shape[1], bias, renormalize)
        topk_weights.copy_(weights * by)
        topk_indices.copy_(ids if is_padding is None else ids.masked_fill(is_padding[:, None], -1))
        tokens, count = ids.shape
        order = torch.arange(count) * tokens + torch.arange(tokens)[:, None]
        token_expert_indices.copy_(order)

    as_routing(asked, compute, gating, asked.named["topk_indices"])


def _chooses(name: str, score: Callable[[Tensor], Tensor]) -> None:
    def call(
        asked: OperatorAsked,
        topk_weights: Tensor,
        topk_indices: Tensor,
        token_expert_indices: Tensor,
        gating_output: Tensor,
        renormalize: bool,
        bias: Tensor | None,
        is_padding: Tensor | None,
        routed_scaling_factor: float = 1.0,
    ) -> None:
        _route(asked, score, gating_output, bias, renormalize, routed_scaling_factor)

    defines(name)(call)


_chooses("topk_softmax", lambda x: x.softmax(-1))
_chooses("topk_sigmoid", torch.sigmoid)
_chooses("topk_softplus_sqrt", lambda x: softplus(x).sqrt())


@streams("moe_align_block_size", follows=True)
def _align(
    topk_ids: Tensor,
    num_experts: int,
    block_size: int,
    sorted_token_ids: Tensor,
    experts_ids: Tensor,
    num_tokens_post_pad: Tensor,
    maybe_expert_map: Tensor | None,
) -> None:
    experts = topk_ids.flatten().long()
    if maybe_expert_map is not None:
        experts = torch.where(experts < 0, -1, maybe_expert_map[experts.clamp(min=0)].long())
    is_here = experts >= 0
    counts = torch.bincount(experts[is_here], minlength=num_experts)
    blocks = -(-counts // block_size)
    firsts, starts = counts.cumsum(0) - counts, (blocks.cumsum(0) - blocks) * block_size
    order = experts.argsort(stable=True)[int((~is_here).sum()) :]
    of = experts[order]
    sorted_token_ids.fill_(experts.numel())
    places = starts[of] + torch.arange(of.numel()) - firsts[of]
    sorted_token_ids[places] = order.to(sorted_token_ids.dtype)
    num_tokens_post_pad.fill_(int(blocks.sum()) * block_size)
    experts_ids.fill_(-1)
    repeat_interleave = torch.arange(num_experts).repeat_interleave(blocks)[: experts_ids.numel()]
    experts_ids[: repeat_interleave.numel()] = repeat_interleave.to(experts_ids.dtype)


@streams("moe_sum")
def _sum(
    input: Tensor, output: Tensor, topk_ids: Tensor | None = None, expert_map: Tensor | None = None
) -> None:
    parts = input.float()
    if topk_ids is not None:
        experts = topk_ids.long()
        is_here = experts >= 0
        if expert_map is not None:
            is_here &= expert_map[experts.clamp(min=0)] >= 0
        parts = parts.where(is_here.unsqueeze(-1), 0.0)
    output.copy_(parts.sum(1))


@streams("shuffle_rows")
def _shuffle_rows(input_tensor: Tensor, dst2src_map: Tensor, output_tensor: Tensor) -> None:
    output_tensor.copy_(input_tensor[dst2src_map.long()])


def choose_in_groups(scores: Tensor, groups: int, topk_group: int, topk: int) -> Tensor:
    """Return the experts of the groups with the largest sums of their two largest scores."""
    grouped = scores.unflatten(-1, (groups, -1))
    best = grouped.topk(min(2, grouped.shape[-1]), -1).values.sum(-1).topk(topk_group, -1).indices
    is_in = torch.zeros(grouped.shape[:2], dtype=torch.bool).scatter_(1, best, True)
    chosen = grouped.masked_fill(~is_in.unsqueeze(-1), float("-inf")).flatten(1)
    return chosen.topk(topk, -1).indices


_SCORES = (lambda x: x, torch.sigmoid)
"""By ``scoring_func``."""


def _group_shapes(scores: Tensor, topk: int, **named: Any) -> tuple[Tensor, Tensor]:
    shape = scores.shape[0], topk
    result = scores.new_empty(shape, dtype=torch.float32)
    return result, scores.new_empty(shape, dtype=torch.int32)


@defines("grouped_topk", shapes=_group_shapes)
def _grouped_topk(
    asked: OperatorAsked,
    scores: Tensor,
    n_group: int,
    topk_group: int,
    topk: int,
    renormalize: bool,
    routed_scaling_factor: float,
    bias: Tensor,
    scoring_func: int,
) -> tuple[Tensor, Tensor]:
    weights, ids = _group_shapes(scores, topk)

    def compute(scores: Tensor, bias: Tensor, weights: Tensor, ids: Tensor) -> None:
        result = _SCORES[scoring_func](scores.float())
        at = choose_in_groups(result + bias.float(), n_group, topk_group, topk)
        built = result.gather(1, at)
        built = built / (built.sum(-1, keepdim=True) + 1e-20) if renormalize else built
        weights.copy_(built * routed_scaling_factor)
        ids.copy_(at)

    as_routing(asked, compute, scores, ids, (scores, bias, weights, ids), (weights, ids))
    return weights, ids
