"""An operation's schedule for each state of the device: idle, or with work queued before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from kernbench.hardware import SipSpec
from kernbench.kernel_time import SHARES
from kernbench.library_kernels import AutogradPhase, Reuse, kept_share
from kernbench.op_log import Template
from kernbench.runtime_api import KernelPlan
from kernbench.torch_bridge.base.modes import NO_BACKWARD, graph_task

_is_grad_enabled = torch.is_grad_enabled


def phase_now() -> AutogradPhase:
    """Return the phase of the program that runs in this thread."""
    if graph_task() != NO_BACKWARD:
        return AutogradPhase.BACKWARD
    return AutogradPhase.RECORDED if _is_grad_enabled() else AutogradPhase.UNRECORDED


class GraphRun(NamedTuple):
    """A compiled graph that runs."""

    phase: AutogradPhase
    """What it was compiled for."""
    cold: Mapping[int, StorageWeakRef]
    """The storages among its operands that no operation has just made: weights, and in a backward
    what the forward has kept. By ``cdata``, which no other storage has while there are these."""

    @classmethod
    def of(cls, compiled: Mapping[str, Any], inputs: Sequence[Any]) -> GraphRun:
        """Return it by the arguments that a graph was compiled with.

        Cold is what PyTorch's compiler calls static: parameters, buffers, what the forward kept.
        """
        if compiled.get("is_backward"):
            phase = AutogradPhase.BACKWARD
        elif compiled.get("is_inference"):
            phase = AutogradPhase.UNRECORDED
        else:
            phase = AutogradPhase.RECORDED
        static = [inputs[index] for index in compiled.get("static_input_idxs") or ()]
        cold = [
            StorageWeakRef(item.untyped_storage())
            for item in static
            if isinstance(item, torch.Tensor)
        ]
        return cls(phase, {item.cdata: item for item in cold})


def held_steps(reuse: Reuse | None, plan: KernelPlan, sip: SipSpec) -> tuple[int, ...]:
    """Return what the cache holds of each operand of a Triton kernel, in steps (``SHARES``).

    Empty where it holds nothing. Where nobody knows what is cold, all operands of matrix products
    are, as they may be weights, and of a backward what is more than its results.
    """
    if reuse is None or (reuse.cold_params is None and plan.has_products):
        return ()
    loaded = sum(operand.size for operand in plan.operands if operand.is_loaded)
    stored = sum(operand.size for operand in plan.operands if not operand.is_loaded)
    kept = (len(SHARES) - 1) * kept_share(loaded + stored, sip)
    found_of_loaded, found_of_stored = int(kept), int(kept)
    if reuse.phase is AutogradPhase.BACKWARD and reuse.cold_params is None:
        # As much as is written: the gradient that the launch before has made.
        found_of_loaded = int(kept * min(1.0, stored / max(loaded, 1)))
    elif reuse.phase is AutogradPhase.RECORDED:
        found_of_stored = 0
    cold = reuse.cold_params or ()
    numbers = []
    for operand in plan.operands:
        steps = found_of_loaded if operand.is_loaded else found_of_stored
        numbers.append(steps if operand.is_known and operand.param not in cold else 0)
    return tuple(numbers) if any(numbers) else ()


class OperationTiming:
    """Schedules by state, each computed when it is first met.

    ``make`` is called with whether the kernel waited in the device's queue. ``with_reuse`` returns
    the timing of the same operation if it finds something in the cache; None if that changes
    nothing.
    """

    __slots__ = ("_by_reuse", "_make", "_with_reuse", "by_phase", "idle", "queued")

    def __init__(
        self,
        make: Callable[[bool], Template],
        with_reuse: Callable[[Reuse], OperationTiming] | None = None,
    ) -> None:
        self._make = make
        self._with_reuse = with_reuse
        self._by_reuse: dict[Reuse, OperationTiming] = {}
        self.by_phase: list[OperationTiming | None] = [None] * len(AutogradPhase)
        """What :meth:`in_phase` has returned."""
        self.idle: Template | None = None
        """The schedule on an idle device; None until it is first needed."""
        self.queued: Template | None = None

    def template(self, queued: bool) -> Template:
        """Return the schedule for a state of the device."""
        if queued:
            if self.queued is None:
                self.queued = self._make(True)
            return self.queued
        if self.idle is None:
            self.idle = self._make(False)
        return self.idle

    def with_reuse(self, reuse: Reuse) -> OperationTiming:
        """Return the schedules of the same operation that finds this in the cache."""
        if self._with_reuse is None:
            return self
        operation_timing = self._by_reuse.get(reuse)
        if operation_timing is None:
            operation_timing = self._by_reuse[reuse] = self._with_reuse(reuse)
        return operation_timing

    def in_phase(self, phase: AutogradPhase) -> OperationTiming:
        """Return the schedules of the same operation in a phase of an eager program."""
        reuse = self.by_phase[phase]
        if reuse is None:
            reuse = self.by_phase[phase] = self.with_reuse(Reuse(phase))
        return reuse


class ChangingTiming(OperationTiming):
    """The timing of an operation that takes as long as the values of some operand say.

    A captured graph asks again at each replay, as the values may be others by then.
    """

    __slots__ = ("current",)

    def __init__(self, current: Callable[[], OperationTiming]) -> None:
        super().__init__(current().template)
        self.current = current
        """Returns the timing by the values at the time of the call."""
