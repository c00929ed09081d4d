"""Products of experts' rows with their weights, and the order that rows are brought into for them.

Source: the definitions that vLLM's own tests compare its kernels with (``tests/kernels/moe``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.base.operations import describe
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.costs import num_bytes
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.extension_modules.definitions import (
    OperatorAsked,
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


def between_ends(offsets: Tensor, rows: int, experts: int) -> Callable[[], list[int] | None]:
    """Return what reads experts' counts of rows from where they begin."""

    def read() -> list[int] | None:
        numbers = numbers_of(offsets)
        if numbers is None:
            return None
        ends = numbers if len(numbers) > experts else [*numbers, rows]
        return [end - begin for begin, end in pairwise(ends)]

    return read


def _sorted(topk_ids: Tensor, experts: int, of_rank: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return choices in the order of their experts here, others' at the end, and rows' ends."""
    ids = topk_ids.flatten().long()
    if of_rank is not None:
        ids = torch.where(ids < 0, -1, of_rank[ids.clamp(min=0)].long())
    ids = torch.where((ids < 0) | (ids >= experts), experts, ids)
    counts = torch.bincount(ids, minlength=experts + 1)[:experts]
    return ids.argsort(stable=True), torch.cat((counts.new_zeros(1), counts.cumsum(0)))


def _permute_bytes(input: Tensor, permuted_input: Tensor, **_: Any) -> tuple[int, int]:
    return num_bytes((input,)), num_bytes((permuted_input,))


@streams("moe_permute", "moe_permute_with_scratch", moves=_permute_bytes)
def _permute(
    input: Tensor,
    topk_ids: Tensor,
    token_expert_indices: Tensor,
    expert_map: Tensor | None,
    n_expert: int,
    n_local_expert: int,
    topk: int,
    permuted_input: Tensor,
    expert_first_token_offset: Tensor,
    inv_permuted_idx: Tensor,
    permuted_idx: Tensor,
    sort_workspace: Tensor | None = None,
    permuted_experts_id: Tensor | None = None,
    sorted_row_idx: Tensor | None = None,
    topk_ids_for_sort: Tensor | None = None,
) -> None:
    order, ends = _sorted(topk_ids, n_local_expert, expert_map)
    permuted_input.copy_(input[order // topk])
    expert_first_token_offset.copy_(ends)
    inv_permuted_idx.copy_(order.argsort().view(inv_permuted_idx.shape))
    permuted_idx.copy_(order.masked_fill(torch.arange(order.numel()) >= ends[-1], order.numel()))


@streams("moe_unpermute")
def _unpermute(
    permuted_hidden_states: Tensor,
    topk_weights: Tensor,
    inv_permuted_idx: Tensor,
    expert_first_token_offset: Tensor | None,
    topk: int,
    hidden_states: Tensor,
) -> None:
    places = inv_permuted_idx.long()
    weights = topk_weights.float()
    if expert_first_token_offset is not None:
        weights = weights.where(places < expert_first_token_offset[-1], 0.0)
    rows = permuted_hidden_states.float()[places.clamp(max=len(permuted_hidden_states) - 1)]
    rows = rows.where(weights.unsqueeze(-1) != 0, 0.0)
    hidden_states.copy_((rows * weights.unsqueeze(-1)).sum(1))


@defines("moe_permute_unpermute_supported", on_host=True)
def _permutes(asked: OperatorAsked) -> bool:
    return True


@defines("moe_permute_sort_workspace_size", on_host=True)
def _workspace(asked: OperatorAsked, num_expanded_rows: int, n_expert: int) -> int:
    # Of a radix sort: keys and values once more.
    return 8 * num_expanded_rows


def _sizes(into: Tensor, counts: Tensor, n: int, k: int) -> None:
    into.copy_(torch.stack((counts, torch.full_like(counts, n), torch.full_like(counts, k)), 1))


@streams("get_cutlass_moe_mm_data", follows=True)
def _problems(
    topk_ids: Tensor,
    expert_offsets: Tensor,
    problem_sizes1: Tensor,
    problem_sizes2: Tensor,
    input_permutation: Tensor,
    output_permutation: Tensor,
    num_experts: int,
    n: int,
    k: int,
    blockscale_offsets: Tensor | None = None,
    is_gated: bool = True,
) -> None:
    order, ends = _sorted(topk_ids, num_experts, None)
    counts = ends.diff()
    _sizes(problem_sizes1, counts, 2 * n if is_gated else n, k)
    _sizes(problem_sizes2, counts, k, n)
    expert_offsets.copy_(ends[: expert_offsets.numel()])
    input_permutation.copy_(order // topk_ids.shape[1])
    output_permutation.copy_(order.argsort())
    if blockscale_offsets is not None:
        padded = (-(-counts // 128) * 128).cumsum(0)
        tensor = torch.cat((padded.new_zeros(1), padded))
        blockscale_offsets.copy_(tensor[: blockscale_offsets.numel()])


@streams("get_cutlass_moe_mm_problem_sizes_from_expert_offsets", follows=True)
def _problems_of_offsets(
    expert_first_token_offset: Tensor,
    problem_sizes1: Tensor,
    problem_sizes2: Tensor,
    n: int,
    k: int,
    swap_ab: bool,
) -> None:
    counts = expert_first_token_offset.diff()
    _sizes(problem_sizes1, counts, 2 * n, k)
    _sizes(problem_sizes2, counts, k, n)


@streams("get_cutlass_batched_moe_mm_data", follows=True)
def _batched_problems(
    expert_offsets: Tensor,
    problem_sizes1: Tensor,
    problem_sizes2: Tensor,
    expert_num_tokens: Tensor,
    num_local_experts: int,
    padded_m: int,
    n: int,
    k: int,
) -> None:
    expert_offsets.copy_(torch.arange(expert_offsets.numel()) * padded_m)
    counts = expert_num_tokens.to(problem_sizes1.dtype)
    _sizes(problem_sizes1, counts, 2 * n, k)
    _sizes(problem_sizes2, counts, k, n)


def _as_groups(
    func: Any,
    out_tensors: Tensor,
    a_tensors: Tensor,
    b_tensors: Tensor,
    problem_sizes: Tensor,
    **_: Any,
) -> Callable[[int], Any]:
    rows_of = problem_sizes.select(1, 0)
    sizes = groups_of(func, lambda: numbers_of(rows_of), a_tensors.shape[0], *b_tensors.shape)
    return as_product(func, sizes, a_tensors.dtype, out_tensors.dtype, grouped=True)


@launches("cutlass_moe_mm", timing=_as_groups, ignores=("a_strides", "b_strides", "c_strides"))
def _cutlass_moe_mm(
    out_tensors: Tensor,
    a_tensors: Tensor,
    b_tensors: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    expert_offsets: Tensor,
    problem_sizes: Tensor,
    per_act_token: bool,
    per_out_ch: bool,
) -> None:
    begins, counts = expert_offsets.tolist(), problem_sizes[:, 0].tolist()
    for number, (begin, count) in enumerate(zip(begins, counts, strict=False)):
        rows = slice(begin, begin + count)
        wide = a_tensors[rows].float() @ b_tensors[number].float().t()
        wide = wide * (a_scales[rows] if per_act_token else a_scales).float().view(-1, 1)
        out_tensors[rows] = (wide * b_scales[number].float().view(1, -1)).to(out_tensors.dtype)


@streams("batched_moe_align_block_size", follows=True)
def _batched_align(
    max_tokens_per_batch: int,
    block_size: int,
    expert_num_tokens: Tensor,
    sorted_token_ids: Tensor,
    experts_ids: Tensor,
    num_tokens_post_pad: Tensor,
) -> None:
    counts = expert_num_tokens.long()
    blocks = -(-counts // block_size)
    total = int(blocks.sum())
    none = max_tokens_per_batch * counts.numel()
    sorted_token_ids.fill_(none)
    experts_ids.fill_(-1)
    num_tokens_post_pad.fill_(total * block_size)
    of = torch.arange(counts.numel()).repeat_interleave(blocks)
    experts_ids[:total] = of.to(experts_ids.dtype)
    number = torch.arange(total) - (blocks.cumsum(0) - blocks)[of]
    rows = number[:, None] * block_size + torch.arange(block_size)
    result = (rows + of[:, None] * max_tokens_per_batch).where(rows < counts[of][:, None], none)
    sorted_token_ids[: total * block_size] = result.flatten().to(sorted_token_ids.dtype)


def blocks_of(expert_ids: Tensor, block: int) -> Callable[[], list[int] | None]:
    """Return what reads experts' counts of rows, those that fill up their blocks included."""

    def read() -> list[int] | None:
        numbers = numbers_of(expert_ids)
        if numbers is None:
            return None
        counts = Counter(number for number in numbers if number >= 0)
        return [block * count for count in counts.values()]

    return read


def _of_choices(
    a: Tensor, c_or_none: Tensor | None, size_m: int, size_n: int, top_k: int, **_: Any
) -> Tensor:
    return a.new_empty(size_m * top_k, size_n) if c_or_none is None else c_or_none


def _marlin_groups(
    func: Any,
    out: Tensor,
    b_q_weight: Tensor,
    b_scales: Tensor,
    b_zeros_or_none: Tensor | None,
    expert_ids: Tensor,
    moe_block_size: int,
    size_m: int,
    size_n: int,
    size_k: int,
    top_k: int,
    **_: Any,
) -> Callable[[int], Any]:
    experts = b_q_weight.shape[0]
    bytes_of = num_bytes((b_q_weight, b_scales, b_zeros_or_none)) / (experts * size_n * size_k)
    sizes = groups_of(
        func, blocks_of(expert_ids, moe_block_size), size_m * top_k, experts, size_n, size_k
    )
    return as_product(func, sizes, out.dtype, out.dtype, weight_bytes=bytes_of, grouped=True)


@makes("moe_wna16_marlin_gemm", result=_of_choices, timing=_marlin_groups)
def _moe_marlin(
    out: Tensor,
    /,
    a: Tensor,
    c_or_none: Tensor | None,
    b_q_weight: Tensor,
    b_scales: Tensor,
    b_zeros_or_none: Tensor | None,
    workspace: Tensor,
    sorted_token_ids: Tensor,
    expert_ids: Tensor,
    topk_weights: Tensor,
    moe_block_size: int,
    top_k: int,
    mul_topk_weights: bool,
    size_m: int,
    size_n: int,
    size_k: int,
    use_atomic_add: bool,
    use_fp32_reduce: bool,
    is_zp_float: bool,
    num_tokens_past_padded: Tensor | None = None,
    num_tokens_post_padded: Tensor | None = None,
    b_type_id: int = 0,
    b_q_type_id: int = 0,
    b_bias_or_none: Tensor | None = None,
    is_k_full: bool = True,
    is_ep: bool = False,
    thread_k: int = -1,
    thread_n: int = -1,
    blocks_per_sm: int = -1,
) -> None:
    kind = kind_of(b_type_id or b_q_type_id)
    if b_bias_or_none is not None:
        raise UnsupportedTorchError(
            "moe_wna16_marlin_gemm with b_bias: kernbench defines it without; use experts in Triton"
        )
    total = num_tokens_past_padded if num_tokens_post_padded is None else num_tokens_post_padded
    assert total is not None
    blocks = int(total) // moe_block_size
    rows = sorted_token_ids[: blocks * moe_block_size].view(blocks, moe_block_size).long()
    of = expert_ids[:blocks].long()
    weights = topk_weights.flatten().float()
    for expert in of.unique().tolist():
        choices = rows[of == expert].flatten()
        choices = choices[choices < size_m * top_k]
        if expert < 0:
            out[choices] = 0
            continue
        zeros = None if b_zeros_or_none is None else b_zeros_or_none[expert]
        weight = marlin_weights(
            b_q_weight[expert], b_scales[expert], zeros, kind, size_k, size_n, is_zp_float
        )
        result = multiplied(a[choices // top_k], weight)
        out[choices] = (result * weights[choices, None] if mul_topk_weights else result).to(
            out.dtype
        )
