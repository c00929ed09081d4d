"""Kernels on numbers that are known without data: what they write is known then (ADR-0098).

Launches that decide by such numbers take the same time for the same ones. Layers of a model share
masks and lengths, and ranks have the same ones, so that most launches find what a launch before has
done (ADR-0277).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kernbench.replay import PointerArg
from kernbench.torch_bridge.dispatch.known_values import MOST_BYTES, forget, values_of
from kernbench.torch_bridge.placement.names import unobserved
from kernbench.torch_bridge.placement.residence import storage_of
from kernbench.torch_bridge.processes.process import current

if TYPE_CHECKING:
    from kernbench.interleaved import Executed
    from kernbench.memory import Buffer
    from kernbench.runtime_api import KernelPlan, LivePlan, Run
    from kernbench.torch_bridge.base.operation_timing import OperationTiming

_MOST_KEPT = 64
"""The number of launches whose times are kept, the latest ones."""

_MOST_WRITTEN_BYTES = 1 << 18
"""More known numbers that a launch changes are not kept."""

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
    value: list[Any] = list(params)
    known: dict[int, Buffer] = {}
    for index, *_ in plan.pointers:
        tensor = params[index]
        buffer = addresses.known_buffer(tensor, sip_id)
        # One buffer for all tensors in the same memory.
        buffer = known.setdefault(buffer.address, buffer)
        value[index] = PointerArg(buffer, tensor.storage_offset() * tensor.element_size())
    execute(value)
    forget(tensor for tensor in fresh if not _is_whole(tensor))


def _written(plan: KernelPlan, params: Sequence[Any]) -> list[Tensor]:
    return [params[index] for index, _, _, writes in plan.pointers if writes]


def _is_known(plan: KernelPlan, params: Sequence[Any]) -> bool:
    """Whether a launch reads known memory alone, and writes little."""
    reads = {operand.param for operand in plan.operands if operand.is_loaded}
    if plan.has_atomics or any(operand.param < 0 for operand in plan.operands):
        return False
    written = _written(plan, params)
    return (
        bool(written)
        and all(storage_of(item).nbytes() <= MOST_BYTES for item in written)
        and all(
            values_of(params[index]) is not None for index, *_ in plan.pointers if index in reads
        )
    )


def _is_whole(tensor: Tensor) -> bool:
    """Whether no element of a tensor's memory is as it was before the launch."""
    with unobserved():
        result = torch.empty(0, dtype=torch.uint8).set_(storage_of(tensor)._known)
        elements = result.reshape(-1, tensor.element_size())
        return not bool((elements == _UNWRITTEN).all(1).any())


def take_for_equal(plan: LivePlan, params: list[Any]) -> list[Buffer]:
    """Take unknown numbers with fractions, as a sampler's scores, for zeros while a kernel runs.

    It then comes to its result in one pass. Returns their buffers; none where it decides by other
    numbers, as lengths.
    """
    declared = plan.kernel.binary.module.kernel.params
    unknown = [
        (declared[index].dtype, pair.buffer)
        for index, pair in enumerate(params)
        if isinstance(pair, PointerArg) and not pair.buffer.has_data
    ]
    if not all(dtype is not None and dtype.is_floating_point for dtype, _ in unknown):
        return []
    buffers = list({id(buffer): buffer for _, buffer in unknown}.values())
    for buffer in buffers:
        buffer.adopt(np.zeros(buffer.size_bytes, dtype=np.uint8))
        buffer.has_data = True
    return buffers


class _Kept(NamedTuple):
    timing: OperationTiming
    forgets: tuple[int, ...]
    """The parameters whose memory is unknown after it."""
    written: tuple[tuple[int, Any], ...]
    """The parameters whose known memory it changes, with its bytes after it."""


class LiveLaunches:
    """The times of launches by all that they could read: plan, arguments, and known memory."""

    def __init__(self) -> None:
        self._kept: dict[Any, _Kept] = {}
        self._asked: Any = None
        """The key of the launch that runs; None if it is not to be kept."""

    def known(
        self, run: Run, plan: LivePlan, params: Sequence[Any], sip_id: int
    ) -> OperationTiming | None:
        """Return the time of a launch, and do what it does to memory; None if it has to run."""
        self._asked = None
        if run.has_data or plan.writes_anywhere:
            return None
        key = plan, id(run.machine.sip_at(sip_id)), _state_of(params)
        pair = self._kept.pop(key, None)
        if pair is None:
            self._asked = key
            return None
        # It is the latest one now.
        self._kept[key] = pair
        # What is captured has not written yet.
        captured = current().capture is not None
        for index in (*pair.forgets, *(index for index, _ in pair.written if captured)):
            current().session.addresses.forget_numbers(params[index].buffer)
        for index, numbers in () if captured else pair.written:
            params[index].buffer.bytes[:] = numbers
        return pair.timing

    def keep(self, executed: Executed, params: Sequence[Any], timing: OperationTiming) -> None:
        """Keep what the launch did that :meth:`known` was asked for.

        Not if it changed many numbers, or printed some.
        """
        key, self._asked = self._asked, None
        if key is None or executed.reached:
            return
        if any(op.name == "tt.print" for op in key[0].kernel.binary.module.walk()):
            return
        forgets: list[int] = []
        written: list[tuple[int, Any]] = []
        for index, (before, after) in enumerate(zip(key[2], _state_of(params), strict=True)):
            if not isinstance(params[index], PointerArg):
                continue
            if not params[index].buffer.has_data:
                forgets.append(index)
            elif before != after:
                if params[index].buffer.size_bytes > _MOST_WRITTEN_BYTES:
                    return
                written.append((index, params[index].buffer.bytes.copy()))
        if len(self._kept) >= _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = _Kept(timing, tuple(forgets), tuple(written))


def _state_of(params: Sequence[Any]) -> tuple[Any, ...]:
    """Return what decides what a launch does: which memory, and its bytes where they are known."""
    seen: dict[int, tuple[int, bytes]] = {}
    states: list[Any] = []
    for param in params:
        if not isinstance(param, PointerArg):
            states.append((type(param), param))
            continue
        buffer = param.buffer
        pair = seen.get(buffer.address)
        if pair is None:
            numbers = blake2b(buffer.bytes.data).digest() if buffer.has_data else b""
            pair = seen[buffer.address] = len(seen), numbers
        states.append((PointerArg, pair[0], param.offset_bytes, buffer.size_bytes, pair[1]))
    return tuple(states)
