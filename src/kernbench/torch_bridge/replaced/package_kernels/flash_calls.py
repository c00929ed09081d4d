"""What calls of FlashAttention have in common: lengths, options, the launch of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernbench.torch_bridge.costs.attention import (
    FlashCall,
    FlashLengths,
    flash_kernels,
    lengths_between,
)
from kernbench.torch_bridge.device.rng import device_generator
from kernbench.torch_bridge.dispatch.even_choices import tell
from kernbench.torch_bridge.dispatch.known_values import values_of
from kernbench.torch_bridge.placement.names import unobserved
from kernbench.torch_bridge.processes.process import current
from kernbench.torch_bridge.replaced.package_kernels.flash_values import FlashOptions
from kernbench.torch_bridge.replaced.package_kernels.launching import run_kernel

NAMESPACE = "flash_attn"
_FEW_QUERIES = 16
"""The most queries of a sequence for which kernels share its keys among several programs."""
_MOST_SIZE = 256


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of a call's sequences, as they are on the device."""

    queries: Callable[[], Sequence[int]]
    keys: Callable[[], Sequence[int]]

    def pairs(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self.queries(), self.keys(), strict=True))


def numbers_of(tensor: Tensor) -> list[int] | None:
    """Return the values of a tensor, which the host does not wait for; None without data."""
    tell((tensor,))
    with unobserved():
        result = values_of(tensor)
        return None if result is None else [int(item) for item in result.tolist()]


def between(ends: Tensor, total: int) -> Callable[[], Sequence[int]]:
    """Return what reads lengths from their sums: equal ones if they are not known."""
    count = max(ends.numel() - 1, 1)
    return paged(ends, count, -(-total // count))


def of_each(lengths: Tensor | None, count: int, assumed: int, more: int = 0) -> Any:
    """Return what reads lengths that are given by a tensor, else ``assumed``."""

    def read() -> Sequence[int]:
        numbers = None if lengths is None else numbers_of(lengths)
        return (assumed,) * count if numbers is None else [number + more for number in numbers]

    return read


def launch(
    func: Any,
    compute: Callable[..., None],
    value: tuple[Any, ...],
    written: Sequence[Tensor],
    call: FlashCall,
    lengths: Lengths,
) -> None:
    costs = current().session.costs

    def timing(sip_id: int) -> Any:
        return costs.of(flash_kernels, call.name, FlashLengths(call, lengths.pairs()), sip_id)

    run_kernel(func, compute, value, written, timing)


def call_of(
    name: str, kernel: str, q: Tensor, k: Tensor, options: FlashOptions, **sizes: Any
) -> FlashCall:
    """Return what is asked of a kernel; ``sizes`` where they are not those of ``q`` and ``k``."""
    return FlashCall(
        name=name,
        kernel=kernel,
        heads=q.shape[-2],
        kv_heads=k.shape[-2],
        causal=options.causal,
        window=max(options.left, 0),
        **{"dtype": q.dtype, "head_dim": q.shape[-1], **sizes},
    )


def kernel_of(queries: int) -> str:
    return "decode" if queries <= _FEW_QUERIES else "forward"


def check(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse what the kernels do not take."""
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError(
            f"FlashAttention only supports fp16 and bf16 data type, but got {q.dtype}"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise RuntimeError(
            "FlashAttention: query, key and value must have one dtype, but got "
            f"{q.dtype}, {k.dtype} and {v.dtype}"
        )
    if q.shape[-1] > _MOST_SIZE:
        raise RuntimeError(
            f"FlashAttention forward only supports head dimension at most {_MOST_SIZE}, but got "
            f"{q.shape[-1]}"
        )
    if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        raise RuntimeError(
            "FlashAttention: the number of heads in key/value must divide that in query, but got "
            f"{k.shape[-2]} and {q.shape[-2]}"
        )


def check_lengths(**lengths: Tensor | None) -> None:
    """Refuse lengths of other integers than the kernels read, by name."""
    for name, length in lengths.items():
        if length is not None and length.dtype is not torch.int32:
            raise RuntimeError(f"{name} must have dtype int32, but got {length.dtype}")


def _sums_shape(q: Tensor) -> tuple[int, ...]:
    """Return the shape of queries' sums of exponentials: heads come before their places."""
    return (*q.shape[:-3], q.shape[-2], q.shape[-3])


def check_sums(lse: Tensor, q: Tensor) -> None:
    """Refuse sums of exponentials of other queries, beside which the kernels would read."""
    shape = _sums_shape(q)
    if tuple(lse.shape) != shape:
        raise RuntimeError(
            f"FlashAttention backward: softmax_lse must have shape {shape}, one log of a sum for "
            f"each query, but has {tuple(lse.shape)}"
        )


def seeded(options: FlashOptions, state: Tensor | None) -> FlashOptions:
    """Return options with the seed of what dropout leaves out, from a state that was drawn."""
    if not options.dropout or state is None:
        return options
    return replace(options, seed=int(state[0]))


def drawn(q: Tensor, dropout_p: float) -> Tensor:
    """Return the state of random numbers that a forward pass draws, for its backward pass."""
    state = q.new_empty(2, dtype=torch.int64)
    if dropout_p:
        capture = current().capture
        if capture is not None:
            capture.refuse("dropout of flash_attn")
        if not state.is_meta:
            with unobserved(), device_generator(q.numel(), None):
                state.random_(0, 1 << 62)
    return state


def made_for(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(_sums_shape(q), dtype=torch.float32)


def paged(ends: Tensor | None, count: int, assumed: int) -> Callable[[], Sequence[int]]:
    def read() -> Sequence[int]:
        numbers = None if ends is None else numbers_of(ends)
        return (assumed,) * count if numbers is None else lengths_between(numbers)

    return read
