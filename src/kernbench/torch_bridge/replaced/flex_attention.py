"""flex_attention as one operation: computed by its definition, timed as flash attention.

On a GPU it is compiled into a kernel; run eagerly, it would take memory and time for all scores:
PyTorch's own definition computes all at once, a gigabyte per head for 16,384 queries. Here it is
computed for some queries and their keys at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
import torch.nn.attention.flex_attention as flex
from torch import Tensor
from torch._higher_order_ops.flex_attention import math_attention
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from kernbench.torch_bridge.base.dtypes import kernel_dtype
from kernbench.torch_bridge.base.modes import DIFFERENTIATING
from kernbench.torch_bridge.base.operations import PLAIN
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.costs.attention import OwnAttention, own_kernels
from kernbench.torch_bridge.device.tensors import cpp_device
from kernbench.torch_bridge.dispatch.known_values import values_of
from kernbench.torch_bridge.placement.call_keys import is_meta
from kernbench.torch_bridge.placement.names import unobserved
from kernbench.torch_bridge.placement.residence import residence_of, settle
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.process import current

MOST_SCORES = 1 << 24
"""How many scores are computed at once, unless one block of queries has more."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A call of flex_attention, without its tensors."""

    score_mod: Callable[..., Tensor]
    block_mask: tuple[Any, ...]
    scale: float

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output, and the log-sum-exp and the maximum of scores, in base 2.

        Operands are ``(batch, heads, length, size)``.
        """
        parts = [
            self._of(rows, keys, query[:, :, rows], key[:, :, keys], value[:, :, keys])
            for rows, keys in self._pieces(query, key)
        ]
        out, sums, largest = (torch.cat(pair, dim=2) for pair in zip(*parts, strict=True))
        return out, sums, largest

    def gradients(
        self, operands: Sequence[Tensor], learned: Sequence[Tensor], outer: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Return the gradients of query, key, value and ``learned``.

        ``outer`` are those of the results, None for results without one.
        """
        wide = torch.promote_types(operands[0].dtype, torch.float32)
        sums = [torch.zeros_like(operand, dtype=wide) for operand in operands]
        of_learned: list[Tensor | None] = [None] * len(learned)
        for rows, keys in self._pieces(*operands[:2]):
            places = (rows, keys, keys)
            part = [
                operand[:, :, place].detach().requires_grad_()
                for operand, place in zip(operands, places, strict=True)
            ]
            triple = self._of(rows, keys, *part)
            outputs = [
                (result, gradient[:, :, rows])
                for result, gradient in zip(triple[:2], outer, strict=False)
                if gradient is not None
            ]
            tensor = torch.autograd.grad(
                [result for result, _ in outputs],
                [*part, *learned],
                [gradient for _, gradient in outputs],
                allow_unused=True,
            )
            for total, place, item in zip(sums, places, tensor[:3], strict=True):
                if item is not None:
                    total[:, :, place] += item
            of_learned = [
                before if entry is None else entry if before is None else before + entry
                for before, entry in zip(of_learned, tensor[3:], strict=True)
            ]
        own = [total.to(operand.dtype) for total, operand in zip(sums, operands, strict=True)]
        return [*own, *(entry if entry is None else entry.contiguous() for entry in of_learned)]

    def _of(
        self, rows: slice, keys: slice, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the attention of one piece's operands."""
        *blocks, mask_mod = self.block_mask

        def score(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return self.score_mod(score, b, h, q + rows.start, k + keys.start)

        def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            kept: Tensor = mask_mod(b, h, q + rows.start, k + keys.start)
            return kept

        tensors: tuple[Tensor, Tensor, Tensor] = math_attention(
            query, key, value, score, (*blocks, mask), self.scale, {}
        )
        return tensors

    def _pieces(self, query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice]]:
        """Yield ranges of queries to compute at a time, each with the range of its keys."""
        batch, heads, length = query.shape[:3]
        count = max(MOST_SCORES // max(batch * heads * key.size(2), 1), 1)
        if count >= length:
            yield slice(0, length), slice(0, key.size(2))
            return
        block = min(self.block_mask[-3], length)
        count = max(count // block * block, min(block, count))
        for start in range(0, length, count):
            rows = slice(start, min(start + count, length))
            yield rows, self._keys_of(rows, key.size(2))

    def _keys_of(self, rows: slice, length: int) -> slice:
        """Return the smallest range of whole key blocks that holds all keys of some queries."""
        partial, partial_at, full, full_at = self.block_mask[2:6]
        row_block, key_block = self.block_mask[-3:-1]
        first, last = length, 0
        for counts, places in ((partial, partial_at), (full, full_at)):
            if counts is None:
                continue
            blocks = slice(rows.start // row_block, (rows.stop - 1) // row_block + 1)
            counts, places = counts[..., blocks, None], places[..., blocks, :]
            seen = places[torch.arange(places.size(-1), device=places.device) < counts]
            if seen.numel():
                first = min(first, int(seen.min()) * key_block)
                last = max(last, (int(seen.max()) + 1) * key_block)
        return slice(first, min(last, length)) if first < last else slice(0, min(key_block, length))


_NAME = "flex_attention"


def install(patches: Patches) -> None:
    """Install flex_attention for devices."""
    # Compiled, its definition calls no Python: with data as little as without.
    patches.set(flex, "flex_attention_hop", unseen(_attention, is_python=True))
    # It would warn that it is not compiled, and then call the compiler.
    patches.set(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
) -> Any:
    """Return the output, and the log-sum-exp and the maximum of scores, in base 2."""
    if residence_of(query) is None:
        return math_attention(query, key, value, score_mod, block_mask, scale, kernel_options)
    learned = _learned(score_mod, query) if torch.is_grad_enabled() else ()
    return _Attention.apply(query, key, value, score_mod, block_mask, scale, *learned)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score_mod: Callable[..., Tensor],
        block_mask: tuple[Any, ...],
        scale: float,
        *learned: Tensor,
    ) -> Any:
        ctx.save_for_backward(query, key, value, *learned)
        ctx.options = (score_mod, block_mask, scale)
        ctx.num_keys = _num_keys(key, block_mask)
        attend = Definition(score_mod, block_mask, scale).attend
        with unobserved():
            shapes = _shapes(query, value) if is_meta(query) else attend(query, key, value)
        ctx.mark_non_differentiable(shapes[2])
        _launch(query, key, ctx.num_keys, shapes, backward=False)
        _take_down(attend, (query, key, value), shapes)
        return shapes

    @staticmethod
    @unseen
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        query, key, value, *learned = ctx.saved_tensors
        score_mod, block_mask, scale = ctx.options
        definition = Definition(score_mod, block_mask, scale)
        there = [gradient for gradient in gradients if gradient is not None]

        def again(query: Tensor, key: Tensor, value: Tensor, *there: Tensor) -> Any:
            left = iter(there)
            outer = [None if gradient is None else next(left) for gradient in gradients]
            with torch.enable_grad(), torch._C._ForceDispatchKeyGuard(*DIFFERENTIATING):
                return tuple(definition.gradients((query, key, value), learned, outer))

        tensors: tuple[Tensor | None, ...]
        with unobserved():
            if is_meta(query):
                tensors = tuple(map(torch.empty_like, (query, key, value, *learned)))
            else:
                tensors = again(query, key, value, *there)
        _launch(query, key, ctx.num_keys, tensors, backward=True)
        _take_down(again, (query, key, value, *there), tensors)
        return *tensors[:3], None, None, None, *tensors[3:]


def _take_down(call: Callable[..., Any], args: tuple[Tensor, ...], results: Any) -> None:
    capture = current().capture
    if capture is not None:
        capture.take_whole(call, args, list(results))


def _shapes(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scores = query.new_empty(query.shape[:-1], dtype=torch.float32)
    return query.new_empty(*query.shape[:-1], value.size(-1)), scores, scores.clone()


class _Learned(TorchFunctionMode):
    """Collects the tensors with gradients that functions use, except those that they made."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[int, Tensor] = {}
        self._made: dict[int, Any] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if type(leaf) in PLAIN and leaf.requires_grad and id(leaf) not in self._made:
                self.tensors.setdefault(id(leaf), leaf)
        result = func(*args, **(kwargs or {}))
        self._made.update((id(item), item) for item in tree_leaves(result))
        return result


def _learned(score_mod: Callable[..., Tensor], query: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors with gradients on which a score depends, other than query and key."""
    with unobserved(), torch._C._EnableTorchFunction(), torch.no_grad():
        score = torch.zeros((), device=cpp_device(query))
        place = torch.zeros((), dtype=torch.int, device=score.device)
        with _Learned() as seen:
            score_mod(score, place, place, place, place)
    return tuple(seen.tensors.values())


_NUM_ARGUMENTS = 16
"""The number of the Triton kernel's arguments: operands and results, the block mask, sizes."""


def _launch(query: Tensor, key: Tensor, num_keys: int, results: Any, *, backward: bool) -> None:
    process = current()
    residence = residence_of(query)
    assert residence is not None
    assert residence.device is not None
    for result in results:
        if result is not None:
            settle(result, residence.device, _NAME)
    name = f"{_NAME}_backward" if backward else _NAME
    left = (key.size(0), key.size(1), num_keys, key.size(3))
    dtype = kernel_dtype(query.dtype)
    if dtype is None:
        return
    problem = OwnAttention(tuple(query.shape), left, dtype, backward=backward)
    timing = process.session.costs.of(own_kernels, name, problem, residence.sip_id)
    if timing is not None and query.numel():
        process.host.owe_triton(_NUM_ARGUMENTS)
        process.host.launch(name, timing, residence.sip_id)


def _num_keys(key: Tensor, block_mask: tuple[Any, ...]) -> int:
    """Return the average number of keys per query that the mask leaves, in whole blocks."""
    partial, indices, full = block_mask[2], block_mask[3], block_mask[4]
    with unobserved():
        counts = [values_of(item) for item in (partial, full) if item is not None]
        if any(count is None for count in counts):
            return key.size(2)
        blocks = sum(int(count.sum()) for count in counts if count is not None)
        share = blocks / (partial.numel() * indices.size(-1))
    return max(ceil(share * key.size(2)), 1)
