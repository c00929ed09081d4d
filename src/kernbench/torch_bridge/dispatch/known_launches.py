"""Kernels on numbers that are known without data: what they write is known then (ADR-0098)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernbench.replay import PointerArg
from kernbench.torch_bridge.dispatch.known_values import MOST_ELEMENTS, forget, values_of
from kernbench.torch_bridge.placement.names import unobserved
from kernbench.torch_bridge.placement.residence import storage_of
from kernbench.torch_bridge.processes.process import current

if TYPE_CHECKING:
    from kernbench.memory import Buffer
    from kernbench.runtime_api import KernelPlan

_UNWRITTEN = 0xA5
"""The bytes of memory that a kernel is about to write: an element of them counts as unwritten."""


def forget_written(plan: KernelPlan, params: Sequence[Any]) -> None:
    """Mark what a launch writes as unknown; ``params`` has a tensor for every pointer."""
    forget(_written(plan, params))


def follow_launch(
    plan: KernelPlan, params: Sequence[Any], sip_id: int, execute: Callable[[list[Any]], None]
) -> None:
    """Compute what a launch writes if all that it reads is known, and forget what it writes if not.

    An element that it leaves as it was makes its memory unknown.
    """
    if current().capture is not None or not _is_known(plan, params):
        forget_written(plan, params)
        return
    addresses, fresh = current().session.addresses, []
    for tensor in _written(plan, params):
        storage = storage_of(tensor)
        if values_of(tensor) is None:
            storage._known = torch.UntypedStorage(storage.nbytes()).fill_(_UNWRITTEN)
            fresh.append(tensor)
    given: list[Any] = list(params)
    known: dict[int, Buffer] = {}
    for index, *_ in plan.pointers:
        tensor = params[index]
        buffer = addresses.known_buffer(tensor, sip_id)
        # One buffer for all tensors in the same memory.
        buffer = known.setdefault(buffer.address, buffer)
        given[index] = PointerArg(buffer, tensor.storage_offset() * tensor.element_size())
    execute(given)
    forget(tensor for tensor in fresh if not _is_whole(tensor))


def _written(plan: KernelPlan, params: Sequence[Any]) -> list[Tensor]:
    return [params[index] for index, _, _, writes in plan.pointers if writes]


def _is_known(plan: KernelPlan, params: Sequence[Any]) -> bool:
    """Whether a launch reads known memory alone, and writes little."""
    reads = {each.param for each in plan.operands if each.is_loaded}
    if plan.has_atomics or any(each.param < 0 for each in plan.operands):
        return False
    written = _written(plan, params)
    return (
        bool(written)
        and all(_is_small(each) for each in written)
        and all(
            values_of(params[index]) is not None for index, *_ in plan.pointers if index in reads
        )
    )


def _is_small(tensor: Tensor) -> bool:
    return bool(storage_of(tensor).nbytes() <= MOST_ELEMENTS * tensor.element_size())


def _is_whole(tensor: Tensor) -> bool:
    """Whether no element of a tensor's memory is as it was before the launch."""
    with unobserved():
        found = torch.empty(0, dtype=torch.uint8).set_(storage_of(tensor)._known)
        elements = found.reshape(-1, tensor.element_size())
        return not bool((elements == _UNWRITTEN).all(1).any())
