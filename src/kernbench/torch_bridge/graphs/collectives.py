"""Captured collectives: every rank calls them when its graph is replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from kernbench.torch_bridge.c10d.calls import Call, CollectiveWork
from kernbench.torch_bridge.placement.residence import Residence, storage_of
from kernbench.torch_bridge.processes.process import Process, current

if TYPE_CHECKING:
    from kernbench.torch_bridge.graphs.capture import Capture
    from kernbench.torch_bridge.graphs.memory import Ref

Post = Callable[[Call], CollectiveWork]


@dataclass(frozen=True, slots=True, eq=False)
class Calling:
    """A rank's call of a collective, on a branch of the graph."""

    branch: int
    post: Post
    call: Call
    """Its tensors are references, or in a run without data stand-ins."""

    def with_tensors(self, change: Callable[[Any], Any]) -> Calling:
        """Return the call with other tensors."""
        call = self.call
        inputs = change(call.inputs)
        # If they are one object, they must remain one: the call is in place.
        outputs = inputs if call.outputs is call.inputs else change(call.outputs)
        return replace(self, call=replace(call, inputs=inputs, outputs=outputs))

    def keep(self, step: int, branch: int) -> None:
        """Reserve its memory up to a step of a branch, as other ranks may call only then."""
        for ref in (*self.call.inputs, *self.call.outputs):
            slot = cast("Ref", ref).slot
            slot.last = max(slot.last, step)
            slot.branches.add(branch)
            # The group holds its tensors.
            slot.address = None


@dataclass(frozen=True, slots=True, eq=False)
class Awaiting:
    """A branch's wait for a collective."""

    branch: int
    calling: Calling


class CapturedWork(CollectiveWork):
    """The ``Work`` of a collective that is called only in replays."""

    def __init__(self, capture: Capture, calling: Calling, outputs: Sequence[Tensor]) -> None:
        torch._C._distributed_c10d.Work.__init__(self)
        self._capture = capture
        self._calling = calling
        self._outputs = outputs
        self._process: Process = current()
        self._process.kept.add(self)

    def wait(self, timeout: Any = None) -> bool:
        """Capture that later launches come after the collective."""
        self._capture.wait_for(self._calling)
        self._process.kept.discard(self)
        return True

    def wait_on_host(self) -> None:
        self._capture.refuse(f"{self._calling.call.signature.op}, which the host waits for,")

    def is_completed(self) -> bool:
        self._capture.refuse("is_completed() of a collective")

    def is_success(self) -> bool:
        self._capture.refuse("is_success() of a collective")

    def exception(self) -> Any:
        return None


def stand_in(tensor: Tensor) -> Tensor:
    """Return a tensor without data like another, which takes no device memory."""
    result = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    residence: Residence = storage_of(tensor)._kernbench
    storage_of(result)._kernbench = Residence(residence.device, residence.sip_id)
    return result
