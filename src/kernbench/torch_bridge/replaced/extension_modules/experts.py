"""Routing to experts, sorting of choices by expert, and sums over a token's experts.

Source: the definitions that vLLM's own tests compare its kernels with (``tests/kernels/moe``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from kernbench.library_kernels import move_rows, sort_choices
from kernbench.torch_bridge.costs import num_bytes
from kernbench.torch_bridge.processes.of_all import OperatorCall
from kernbench.torch_bridge.replaced.extension_modules.definitions import (
    as_kernel_of_library,
    as_stream,
    launches,
    makes,
    streams,
)


def _choose(
    scores: Tensor, count: int, bias: Tensor | None, renormalize: bool
) -> tuple[Tensor, Tensor]:
    """Return the weights and numbers of the experts with the largest scores, a bias added."""
    ids = (scores if bias is None else scores + bias.float()).topk(count, -1).indices
    weights = scores.gather(1, ids)
    return weights / weights.sum(-1, keepdim=True) if renormalize else weights, ids


def _chooses(name: str, score: Callable[[Tensor], Tensor]) -> None:
    @streams(
        name,
        takes=(
            "topk_weights topk_indices token_expert_indices gating_output renormalize bias "
            "is_padding routed_scaling_factor=1.0"
        ),
        moves=lambda call: (num_bytes((call.gating_output,)), num_bytes(call.written)),
        deals=("gating_output", "topk_indices"),
    )
    def compute(call: OperatorCall) -> None:
        scores, padding = score(call.gating_output.float()), call.is_padding
        weights, ids = _choose(scores, call.topk_weights.shape[1], call.bias, call.renormalize)
        call.topk_weights.copy_(weights * call.routed_scaling_factor)
        call.topk_indices.copy_(ids if padding is None else ids.masked_fill(padding[:, None], -1))
        tokens, count = ids.shape
        order = torch.arange(count) * tokens + torch.arange(tokens)[:, None]
        call.token_expert_indices.copy_(order)


_chooses("topk_softmax", lambda x: x.softmax(-1))
_chooses("topk_sigmoid", torch.sigmoid)
_chooses("topk_softplus_sqrt", lambda x: softplus(x).sqrt())


def _sorting(call: OperatorCall) -> Callable[[int], Any]:
    launch = sort_choices("moe_align", call.topk_ids.numel())
    return as_kernel_of_library(call.func, launch, (call.topk_ids,), call.written)


@launches(
    "moe_align_block_size",
    takes=(
        "topk_ids num_experts block_size sorted_token_ids experts_ids num_tokens_post_pad "
        "maybe_expert_map"
    ),
    timing=_sorting,
    follows=True,
)
def _align(call: OperatorCall) -> None:
    experts, size, numbers = call.topk_ids.flatten().long(), call.block_size, call.experts_ids
    if call.maybe_expert_map is not None:
        experts = torch.where(experts < 0, -1, call.maybe_expert_map[experts.clamp(min=0)].long())
    is_here = experts >= 0
    counts = torch.bincount(experts[is_here], minlength=call.num_experts)
    blocks = -(-counts // size)
    firsts, starts = counts.cumsum(0) - counts, (blocks.cumsum(0) - blocks) * size
    order = experts.argsort(stable=True)[int((~is_here).sum()) :]
    of = experts[order]
    call.sorted_token_ids.fill_(experts.numel())
    places = starts[of] + torch.arange(of.numel()) - firsts[of]
    call.sorted_token_ids[places] = order.to(call.sorted_token_ids.dtype)
    call.num_tokens_post_pad.fill_(int(blocks.sum()) * size)
    numbers.fill_(-1)
    of_blocks = torch.arange(call.num_experts).repeat_interleave(blocks)[: numbers.numel()]
    numbers[: of_blocks.numel()] = of_blocks.to(numbers.dtype)


def _summing(call: OperatorCall) -> Callable[[int], Any]:
    moved = num_bytes((call.input,)), num_bytes((call.output,))
    launch = move_rows("moe_steps_sum", call.output.shape[0], *moved)
    return as_kernel_of_library(call.func, launch, (call.input,), (call.output,))


@launches("moe_sum", takes="input output topk_ids expert_map", timing=_summing)
def _sum(call: OperatorCall) -> None:
    parts = call.input.float()
    if call.topk_ids is not None:
        experts = call.topk_ids.long()
        is_here = experts >= 0
        if call.expert_map is not None:
            is_here &= call.expert_map[experts.clamp(min=0)] >= 0
        parts = parts.where(is_here.unsqueeze(-1), 0.0)
    call.output.copy_(parts.sum(1))


@streams("shuffle_rows", takes="input_tensor dst2src_map output_tensor")
def _shuffle_rows(call: OperatorCall) -> None:
    call.output_tensor.copy_(call.input_tensor[call.dst2src_map.long()])


def choose_in_groups(scores: Tensor, groups: int, topk_group: int, topk: int) -> Tensor:
    """Return the experts of the groups with the largest sums of their two largest scores."""
    grouped = scores.unflatten(-1, (groups, -1))
    best = grouped.topk(min(2, grouped.shape[-1]), -1).values.sum(-1).topk(topk_group, -1).indices
    is_in = torch.zeros(grouped.shape[:2], dtype=torch.bool).scatter_(1, best, True)
    chosen = grouped.masked_fill(~is_in.unsqueeze(-1), float("-inf")).flatten(1)
    return chosen.topk(topk, -1).indices


_SCORES = (lambda x: x, torch.sigmoid)
"""By ``scoring_func``."""


def chosen_shapes(scores: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    """Return the weights and numbers of chosen experts, without contents."""
    shape = scores.shape[0], topk
    weights = scores.new_empty(shape, dtype=torch.float32)
    return weights, scores.new_empty(shape, dtype=torch.int32)


@makes(
    "grouped_topk",
    takes="scores n_group topk_group topk renormalize routed_scaling_factor bias scoring_func",
    result=lambda call: chosen_shapes(call.scores, call.topk),
    timing=lambda call, results: as_stream(call.func, (call.scores,), results),
    deals="scores",
)
def _grouped_topk(weights: Tensor, ids: Tensor, call: OperatorCall) -> None:
    scores = _SCORES[call.scoring_func](call.scores.float())
    at = choose_in_groups(scores + call.bias.float(), call.n_group, call.topk_group, call.topk)
    chosen = scores.gather(1, at)
    if call.renormalize:
        chosen = chosen / (chosen.sum(-1, keepdim=True) + 1e-20)
    weights.copy_(chosen * call.routed_scaling_factor)
    ids.copy_(at)
