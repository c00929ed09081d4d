"""Products of experts' rows with their weights, and the order that rows are brought into for them.

Source: the definitions that vLLM's own tests compare its kernels with (``tests/kernels/moe``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernbench.library_kernels import CUTLASS, MARLIN
from kernbench.torch_bridge.base.operations import describe
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.costs import num_bytes
from kernbench.torch_bridge.processes.of_all import OperatorCall
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.extension_modules.definitions import (
    as_product,
    defines,
    launches,
    makes,
    streams,
)
from kernbench.torch_bridge.replaced.extension_modules.packed import (
    kind_of,
    marlin_weights,
    multiplied,
)
from kernbench.torch_bridge.replaced.package_kernels.flash_calls import numbers_of


def groups_of(
    func: Any, counts: Callable[[], Iterable[int] | None], rows: int, experts: int, n: int, k: int
) -> Callable[[], tuple[tuple[int, int, int, int], ...]]:
    """Return what reads the products of experts' rows: even ones where nobody knows their counts.

    ``rows`` are those of all experts.
    """
    costs, name = current().session.costs, describe(func).name

    def read() -> tuple[tuple[int, int, int, int], ...]:
        numbers = counts()
        if numbers is None:
            costs.even_groups.add(name)
            numbers = [rows // experts + (index < rows % experts) for index in range(experts)]
        sizes = Counter(number for number in numbers if number > 0)
        return tuple((count, m, n, k) for m, count in sizes.items() if n and k)

    return read


def _sorted(topk_ids: Tensor, experts: int, of_rank: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return choices in the order of their experts here, others' at the end, and rows' ends."""
    ids = topk_ids.flatten().long()
    if of_rank is not None:
        ids = torch.where(ids < 0, -1, of_rank[ids.clamp(min=0)].long())
    ids = torch.where((ids < 0) | (ids >= experts), experts, ids)
    counts = torch.bincount(ids, minlength=experts + 1)[:experts]
    return ids.argsort(stable=True), torch.cat((counts.new_zeros(1), counts.cumsum(0)))


@streams(
    "moe_permute",
    "moe_permute_with_scratch",
    takes=(
        "input topk_ids token_expert_indices expert_map n_expert n_local_expert topk "
        "permuted_input expert_first_token_offset inv_permuted_idx permuted_idx "
        "sort_workspace permuted_experts_id sorted_row_idx topk_ids_for_sort"
    ),
    moves=lambda call: (num_bytes((call.input,)), num_bytes((call.permuted_input,))),
)
def _permute(call: OperatorCall) -> None:
    order, ends = _sorted(call.topk_ids, call.n_local_expert, call.expert_map)
    call.permuted_input.copy_(call.input[order // call.topk])
    call.expert_first_token_offset.copy_(ends)
    call.inv_permuted_idx.copy_(order.argsort().view(call.inv_permuted_idx.shape))
    call.permuted_idx.copy_(
        order.masked_fill(torch.arange(order.numel()) >= ends[-1], order.numel())
    )


@streams(
    "moe_unpermute",
    takes=(
        "permuted_hidden_states topk_weights inv_permuted_idx expert_first_token_offset topk "
        "hidden_states"
    ),
)
def _unpermute(call: OperatorCall) -> None:
    places = call.inv_permuted_idx.long()
    weights = call.topk_weights.float()
    if call.expert_first_token_offset is not None:
        weights = weights.where(places < call.expert_first_token_offset[-1], 0.0)
    rows = call.permuted_hidden_states.float()
    rows = rows[places.clamp(max=len(rows) - 1)]
    rows = rows.where(weights.unsqueeze(-1) != 0, 0.0)
    call.hidden_states.copy_((rows * weights.unsqueeze(-1)).sum(1))


@defines("moe_permute_unpermute_supported", on_host=True)
def _permutes(call: OperatorCall) -> bool:
    return True


@defines("moe_permute_sort_workspace_size", takes="num_expanded_rows n_expert", on_host=True)
def _workspace(call: OperatorCall) -> int:
    # Of a radix sort: keys and values once more.
    return 8 * call.num_expanded_rows


def _problem_sizes(call: OperatorCall, counts: Tensor, n: int) -> None:
    """Write ``(m, n, k)`` of the experts' first products, and of the second."""
    for sizes, *rest in ((call.problem_sizes1, n, call.k), (call.problem_sizes2, call.k, call.n)):
        sizes.copy_(torch.stack([counts, *(torch.full_like(counts, size) for size in rest)], 1))


@streams(
    "get_cutlass_moe_mm_data",
    takes=(
        "topk_ids expert_offsets problem_sizes1 problem_sizes2 input_permutation "
        "output_permutation num_experts n k blockscale_offsets is_gated=True"
    ),
    follows=True,
)
def _problems(call: OperatorCall) -> None:
    order, ends = _sorted(call.topk_ids, call.num_experts, None)
    counts = ends.diff()
    _problem_sizes(call, counts, call.n * (2 if call.is_gated else 1))
    call.expert_offsets.copy_(ends[: call.expert_offsets.numel()])
    call.input_permutation.copy_(order // call.topk_ids.shape[1])
    call.output_permutation.copy_(order.argsort())
    if call.blockscale_offsets is not None:
        padded = (-(-counts // 128) * 128).cumsum(0)
        tensor = torch.cat((padded.new_zeros(1), padded))
        call.blockscale_offsets.copy_(tensor[: call.blockscale_offsets.numel()])


@streams(
    "get_cutlass_moe_mm_problem_sizes_from_expert_offsets",
    takes="expert_first_token_offset problem_sizes1 problem_sizes2 n k swap_ab",
    follows=True,
)
def _problems_of_offsets(call: OperatorCall) -> None:
    _problem_sizes(call, call.expert_first_token_offset.diff(), 2 * call.n)


@streams(
    "get_cutlass_batched_moe_mm_data",
    takes=(
        "expert_offsets problem_sizes1 problem_sizes2 expert_num_tokens num_local_experts "
        "padded_m n k"
    ),
    follows=True,
)
def _batched_problems(call: OperatorCall) -> None:
    call.expert_offsets.copy_(torch.arange(call.expert_offsets.numel()) * call.padded_m)
    _problem_sizes(call, call.expert_num_tokens.to(call.problem_sizes1.dtype), 2 * call.n)


def _as_groups(call: OperatorCall) -> Callable[[int], Any]:
    rows, weights, rows_of = call.a_tensors, call.b_tensors, call.problem_sizes.select(1, 0)
    sizes = groups_of(call.func, lambda: numbers_of(rows_of), rows.shape[0], *weights.shape)
    tiles = replace(CUTLASS, name=f"{CUTLASS.name}_fp8")
    dtypes = rows.dtype, call.out_tensors.dtype
    return as_product(call.func, sizes, *dtypes, grouped=True, experts=tiles)


@launches(
    "cutlass_moe_mm",
    takes=(
        "out_tensors a_tensors b_tensors a_scales b_scales expert_offsets problem_sizes "
        "per_act_token per_out_ch"
    ),
    timing=_as_groups,
    ignores="a_strides b_strides c_strides",
)
def _cutlass_moe_mm(call: OperatorCall) -> None:
    begins, counts = call.expert_offsets.tolist(), call.problem_sizes[:, 0].tolist()
    for number, (begin, count) in enumerate(zip(begins, counts, strict=False)):
        rows = slice(begin, begin + count)
        wide = call.a_tensors[rows].float() @ call.b_tensors[number].float().t()
        of_rows = call.a_scales[rows] if call.per_act_token else call.a_scales
        scaled = wide * of_rows.float().view(-1, 1) * call.b_scales[number].float().view(1, -1)
        call.out_tensors[rows] = scaled.to(call.out_tensors.dtype)


@streams(
    "batched_moe_align_block_size",
    takes=(
        "max_tokens_per_batch block_size expert_num_tokens sorted_token_ids experts_ids "
        "num_tokens_post_pad"
    ),
    follows=True,
)
def _batched_align(call: OperatorCall) -> None:
    counts, size = call.expert_num_tokens.long(), call.block_size
    tokens, experts = call.sorted_token_ids, call.experts_ids
    blocks = -(-counts // size)
    total = int(blocks.sum())
    none = call.max_tokens_per_batch * counts.numel()
    tokens.fill_(none)
    experts.fill_(-1)
    call.num_tokens_post_pad.fill_(total * size)
    of = torch.arange(counts.numel()).repeat_interleave(blocks)
    experts[:total] = of.to(experts.dtype)
    number = torch.arange(total) - (blocks.cumsum(0) - blocks)[of]
    rows = number[:, None] * size + torch.arange(size)
    result = rows + of[:, None] * call.max_tokens_per_batch
    result = result.where(rows < counts[of][:, None], none)
    tokens[: total * size] = result.flatten().to(tokens.dtype)


def blocks_of(expert_ids: Tensor, block: int) -> list[int] | None:
    """Return experts' counts of rows, those that fill up their blocks included; None if unknown."""
    numbers = numbers_of(expert_ids)
    if numbers is None:
        return None
    counts = Counter(number for number in numbers if number >= 0)
    return [block * count for count in counts.values()]


def _of_choices(call: OperatorCall) -> Any:
    if call.c_or_none is not None:
        return call.c_or_none
    return call.a.new_empty(call.size_m * call.top_k, call.size_n)


def _marlin_groups(call: OperatorCall, out: Tensor) -> Callable[[int], Any]:
    experts, n, k = call.b_q_weight.shape[0], call.size_n, call.size_k
    weights = call.b_q_weight, call.b_scales, call.b_zeros_or_none
    bytes_of = num_bytes(weights) / (experts * n * k)
    counts = partial(blocks_of, call.expert_ids, call.moe_block_size)
    # Constants are those of four bits, with scales of groups of integers; other formats unpack
    # likewise.
    tiles = replace(MARLIN, name=f"{MARLIN.name}_int4", row_tiles=(call.moe_block_size,))
    sizes = groups_of(call.func, counts, call.size_m * call.top_k, experts, n, k)
    dtypes, packed = (out.dtype, out.dtype), {"weight_bytes": bytes_of, "grouped": True}
    return as_product(call.func, sizes, *dtypes, **packed, experts=tiles)


@makes(
    "moe_wna16_marlin_gemm",
    takes=(
        "a c_or_none b_q_weight b_scales b_zeros_or_none workspace sorted_token_ids "
        "expert_ids topk_weights moe_block_size top_k mul_topk_weights size_m size_n size_k "
        "use_atomic_add use_fp32_reduce is_zp_float num_tokens_past_padded "
        "num_tokens_post_padded b_type_id b_q_type_id b_bias_or_none is_k_full is_ep thread_k "
        "thread_n blocks_per_sm"
    ),
    result=_of_choices,
    timing=_marlin_groups,
)
def _moe_marlin(out: Tensor, call: OperatorCall) -> None:
    kind = kind_of(call.b_type_id or call.b_q_type_id)
    if call.b_bias_or_none is not None:
        raise UnsupportedTorchError(
            "moe_wna16_marlin_gemm with b_bias: kernbench defines it without; use experts in Triton"
        )
    past = call.num_tokens_past_padded
    total = past if call.num_tokens_post_padded is None else call.num_tokens_post_padded
    assert total is not None
    size = call.moe_block_size
    blocks = int(total) // size
    rows = call.sorted_token_ids[: blocks * size].view(blocks, size).long()
    of = call.expert_ids[:blocks].long()
    weights = call.topk_weights.flatten().float()
    for expert in of.unique().tolist():
        choices = rows[of == expert].flatten()
        choices = choices[choices < call.size_m * call.top_k]
        if expert < 0:
            out[choices] = 0
            continue
        zeros = None if call.b_zeros_or_none is None else call.b_zeros_or_none[expert]
        packed_as = call.b_q_weight[expert], call.b_scales[expert], zeros, kind
        weight = marlin_weights(*packed_as, call.size_k, call.size_n, call.is_zp_float)
        result = multiplied(call.a[choices // call.top_k], weight)
        result = result * weights[choices, None] if call.mul_topk_weights else result
        out[choices] = result.to(out.dtype)
