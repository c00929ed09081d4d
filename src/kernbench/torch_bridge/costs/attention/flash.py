"""The time of FlashAttention's own kernels, by the lengths of a call's sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from kernbench.library_kernels import (
    AttentionProblem,
    Splits,
    attention_kernels,
    flash_backward_launches,
    merged,
    ragged_launches,
)
from kernbench.torch_bridge.base.dtypes import kernel_dtype
from kernbench.torch_bridge.costs.attention.own import OwnAttention, own_kernels
from kernbench.torch_bridge.costs.library import timing_of_library

if TYPE_CHECKING:
    from kernbench.torch_bridge.base.operation_timing import OperationTiming
    from kernbench.torch_bridge.costs.operations import OperationCosts

Lengths = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashCall:
    """What a call asks of the kernels, besides the lengths of its sequences."""

    name: str
    """The name of the operation in reports."""
    kernel: str
    """``flash2_forward``, ``flash2_decode`` (keys in a cache) or ``flash2_backward``."""
    heads: int
    kv_heads: int
    head_dim: int
    dtype: Any
    """PyTorch's."""
    causal: bool = False
    window: int = 0
    """How many keys before its own a query sees; 0 for all."""
    value_dim: int | None = None
    """The size of values where it is another; those of latent vectors are the first of a key."""
    kv_bytes: int | None = None
    """Bytes of an element of keys and values where they are not those of ``dtype``."""


class FlashLengths(NamedTuple):
    """A call, and its sequences' numbers of queries and of keys."""

    call: FlashCall
    pairs: Lengths


def flash_kernels(
    costs: OperationCosts, name: str, problem: FlashLengths, sip_id: int
) -> OperationTiming | None:
    """Return the schedules of a call; None if kernels cannot do it."""
    call, lengths = problem
    # Sequences without keys leave a launch that does next to nothing.
    counted = Counter(length for length in lengths if all(length)) or Counter({(1, 1): 1})
    return _of_library(costs, call, counted, sip_id) or _of_own(costs, call, counted, sip_id)


def _of_library(
    costs: OperationCosts, call: FlashCall, counted: Counter[tuple[int, int]], sip_id: int
) -> OperationTiming | None:
    kernel = attention_kernels(costs.machine.spec.kernel_library or "").get(call.kernel)
    dtype = kernel_dtype(call.dtype)
    if kernel is None or dtype is None or costs.library is None:
        return None
    sip = costs.machine.sip_at(sip_id)
    problems = [
        AttentionProblem(
            batch=count,
            q_len=q_len,
            kv_len=kv_len,
            heads=call.heads,
            kv_heads=call.kv_heads,
            head_dim=call.head_dim,
            value_dim=call.value_dim,
            # A single query sees all keys: the kernel leaves its mask out.
            causal=call.causal and q_len > 1,
            window=call.window,
            dtype=dtype.name,
            q_bytes=dtype.itemsize,
            kv_bytes=call.kv_bytes or dtype.itemsize,
        )
        for (q_len, kv_len), count in counted.items()
    ]
    if call.kernel.endswith("backward"):
        passes = [flash_backward_launches(problem, kernel) for problem in problems]
        launches = tuple(merged(pair) for pair in zip(*passes, strict=True))
    else:
        if kernel.splits is Splits.SINGLE_QUERY and not problems[0].is_single_of_group:
            # With a cache the keys are split whatever the heads: ``mha_fwd_kvcache``.
            kernel = replace(kernel, splits=Splits.EFFICIENT, split_slots=2)
        launches = ragged_launches(problems, kernel, sip.num_pes)
        if "_decode" in call.kernel:
            # Other layers' keys have taken the place of these in the shared cache.
            launches = tuple(
                replace(launch, warm=False) if launch.name == call.kernel else launch
                for launch in launches
            )
    return timing_of_library(call.name, launches, sip, costs.library)


def _of_own(
    costs: OperationCosts, call: FlashCall, counted: Counter[tuple[int, int]], sip_id: int
) -> OperationTiming | None:
    """Return the time of kernbench's own kernels on as many sequences of one length."""
    batch = sum(counted.values())
    queries = sum(q_len * count for (q_len, _), count in counted.items())
    scores = sum(q_len * kv_len * count for (q_len, kv_len), count in counted.items())
    q_len, kv_len = -(-queries // batch), -(-scores // queries)
    if call.window:
        kv_len = min(kv_len, call.window + q_len)
    dtype = kernel_dtype(call.dtype)
    if dtype is None:
        return None
    own = OwnAttention(
        (batch, call.heads, q_len, call.head_dim),
        (batch, call.kv_heads, kv_len, call.head_dim),
        dtype,
        causal=call.causal and q_len > 1,
        backward=call.kernel.endswith("backward"),
    )
    return costs.once(own_kernels, call.name, own, sip_id)


def lengths_between(ends: Sequence[int]) -> tuple[int, ...]:
    """Return the differences of cumulative lengths."""
    return tuple(end - begin for begin, end in pairwise(ends))
