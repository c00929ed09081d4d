"""A capture under way: what it records, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from kernbench.clock import user_site
from kernbench.runtime_api import DeviceStream, Marker
from kernbench.torch_bridge.base.modes import NO_BACKWARD, graph_task
from kernbench.torch_bridge.base.operations import Operation
from kernbench.torch_bridge.base.refusals import CaptureError
from kernbench.torch_bridge.c10d.calls import Call, CollectiveWork
from kernbench.torch_bridge.device.rng import device_generator, known_generator, state_for
from kernbench.torch_bridge.dispatch.operands import leaves, written_tensors
from kernbench.torch_bridge.graphs.collectives import (
    Awaiting,
    Calling,
    CapturedWork,
    Post,
    stand_in,
)
from kernbench.torch_bridge.graphs.memory import GraphMemory, Ref
from kernbench.torch_bridge.graphs.queues import Branches, CaptureQueue, Marking, Waiting
from kernbench.torch_bridge.placement.moves import MOVE, UNDER_WAY
from kernbench.torch_bridge.placement.names import CPU, DEVICE_TYPE, device_at, unobserved
from kernbench.torch_bridge.placement.residence import settle, storage_or_none
from kernbench.torch_bridge.processes.process import Process, RandomState, current

_NEEDS_DATA = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
_COLLECTIVES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})
_CLONING = frozenset(
    f"_c10d_functional::{name}" for name in ("all_reduce", "all_reduce_coalesced", "broadcast")
)
"""They work in place on a copy of their operand."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Random numbers that an operation draws at each replay, from the state at that time."""

    state: RandomState
    generator: Any
    """The generator passed to the operation; None for the device's default one."""
    count: int

    @contextmanager
    def again(self) -> Iterator[None]:
        """Let an operation draw them from the state."""
        owner: Any = known_generator(self.generator) or current()
        # The program may have set another state since.
        before, owner.random_state = owner.random_state, self.state
        try:
            with device_generator(self.count, self.generator):
                yield
        finally:
            owner.random_state = before


@dataclass(frozen=True, slots=True)
class DataStep:
    """A captured operation on data."""

    call: Callable[..., Any]
    args: Any
    kwargs: Any
    results: tuple[tuple[int, Ref], ...] = ()
    """Results by position, with references to the memory in which the program has them."""
    draws: Draws | None = None
    """The random numbers that it draws, if any."""
    place: tuple[int, int | None, str] | None = None
    """Under the sanitizer its branch, that of its forward operation, and its line."""


class Capture:
    """Captures the operations of a process on a stream, and on streams that join it."""

    def __init__(self, process: Process, stream: DeviceStream) -> None:
        self._process = process
        self.sip_id = stream.sip_id
        self.steps: list[DataStep | Calling | Awaiting | Marking | Waiting] = []
        self.branches = Branches(process.session.run, stream, self.steps)
        self.memory = GraphMemory(partial(_branch, process))
        self._has_data = process.session.run.has_data
        self._offsets: dict[RandomState, tuple[int, Any]] = {}
        """The offsets and positions, before the capture, of the states that it draws from."""
        self._open: dict[Calling, None] = {}
        """Collectives that no stream has waited for, in order."""
        self.is_busy = False
        """Whether an operation is under way, whose inner calls are not captured separately."""
        self._passed: tuple[Any, Any] | None = None
        """The operation under way and its arguments, if it only calls a collective."""
        self.refused = ""
        """What was refused, which invalidates the capture; empty if nothing was."""
        process.capture = self
        process.host.launches_as = "capture"
        UNDER_WAY.add(self)

    def observe(
        self,
        go_on: Callable[..., Any],
        func: Any,
        operation: Operation,
        args: Any,
        kwargs: dict[str, Any],
    ) -> Any:
        """Execute an operation of the program by ``go_on``, and capture it.

        Raises:
            CaptureError: The host would wait for the device.
        """
        is_captured = self.is_on_stream()
        if is_captured:
            self._check(func, operation, args, kwargs)
        self.is_busy = True
        try:
            if not is_captured or torch._C._get_dispatch_mode(_FAKE) is not None:
                return go_on(func, operation, args, kwargs)
            if func.namespace in _COLLECTIVES:
                self._passed = (func, args)
                return go_on(func, operation, args, kwargs)
            take = partial(self._take, go_on, func, operation, args, kwargs)
            return self._draw(take, kwargs.get("generator")) if operation.is_random else take()
        finally:
            self.is_busy, self._passed = False, None

    def is_on_stream(self) -> bool:
        """Return whether the current stream is captured."""
        queue = self._process.session.run.current_stream().queue
        return isinstance(queue, CaptureQueue)

    def _draw(self, take: Callable[[], Any], generator: Any) -> Any:
        """Capture an operation by ``take``, and what it draws of a generator's numbers."""
        state = state_for(generator)
        if state is None:
            return take()
        offset, position = state.offset, state.position
        result = take()
        self._offsets.setdefault(state, (offset, position))
        if state.offset > offset:
            draws = Draws(state, generator, state.offset - offset)
            if self._has_data:
                step = self.steps[-1]
                assert isinstance(step, DataStep)
                self.steps[-1] = replace(step, draws=draws)
            else:
                self.steps.append(DataStep(_compute_nothing, (), {}, draws=draws))
        return result

    def _take(
        self,
        go_on: Callable[..., Any],
        func: Any,
        operation: Operation,
        args: Any,
        kwargs: dict[str, Any],
    ) -> Any:
        if not self._has_data:
            return go_on(func, operation, args, kwargs)
        step, bake = len(self.steps), _nothing if operation.is_copy else _host_number
        changed: list[Tensor] = []
        value: Any = None
        with unobserved():
            if any(map(_is_of_device, leaves((args, list(kwargs.values()))))):
                value = self.memory.refs((args, kwargs), step, bake)
                # Operations that take no time run no kernel.
                if not operation.is_free:
                    changed = written_tensors(func, operation, args, kwargs)
                self.memory.keep_bytes(changed, step)
        result = go_on(func, operation, args, kwargs)
        with unobserved():
            memory = self.memory.add_results(map(_device_tensor, leaves(result)), step)
            if memory and value is None:
                value = self.memory.refs((args, kwargs), step, bake)
        if changed or (memory and not operation.is_free):
            self._add(func, value[0], _on_host(value[1]), memory)
        return result

    def take_kernel(self, launch: Callable[..., Any], value: Any, written: list[Tensor]) -> None:
        """Capture the launch of a Triton kernel, before it writes anything."""
        if self._has_data and self.is_on_stream() and not self.is_busy:
            with unobserved():
                args = self.memory.refs(value, len(self.steps), _nothing)
                self.memory.keep_bytes(written, len(self.steps))
            self._add(launch, args)

    def take_whole(self, call: Callable[..., Any], args: Sequence[Tensor], results: Any) -> None:
        """Capture what the bridge implements itself as one operation.

        ``call`` computes it again, from arguments and results like the given ones.
        """
        if self._has_data and self.is_on_stream() and not self.is_busy:
            step = len(self.steps)
            with unobserved():
                refs = self.memory.refs(tuple(args), step, _nothing)
                memory = self.memory.add_results(map(_device_tensor, leaves(results)), step)
            self._add(call, refs, results=memory)

    def meet(self, post: Post, call: Call, is_of_program: bool) -> CollectiveWork:
        """Capture the call of a collective, which ``post`` makes in replays.

        Tensors that C++ passes to it have no device yet.
        """
        tensors = (*call.inputs, *call.outputs)
        if not is_of_program:
            for tensor in tensors:
                settle(tensor, device_at(self.sip_id), call.signature.op)
        if self.is_busy and self._passed is None:
            self.refuse(
                f"{call.signature.op}, a collective inside of a custom operation,",
                "call it outside of that",
            )
        if not tensors or not all(map(_is_of_device, tensors)):
            self.refuse(f"{call.signature.op}, a collective that the host takes part in,")
        calling = Calling(_branch(self._process), post, call)
        if self._has_data:
            with unobserved():
                self._take_made(call)
                calling = calling.with_tensors(
                    lambda tensors: self.memory.refs(list(tensors), len(self.steps), _nothing)
                )
            self._open[calling] = None
        else:
            with unobserved():
                calling = calling.with_tensors(lambda value: list(map(stand_in, value)))
        self.steps.append(calling)
        self.branches.meet(calling)
        return CapturedWork(self, calling, call.outputs)

    def _take_made(self, call: Call) -> None:
        """Capture how C++ has made the outputs of a collective."""
        if self._passed is None:
            return
        memory = self.memory.add_results(call.outputs, len(self.steps))
        if memory and self._passed[0]._schema.name in _CLONING:
            value = leaves(self._passed[1])
            for number, ref in memory:
                source = self.memory.ref(value[number], len(self.steps))
                self._add(Tensor.copy_, (ref, source))

    @contextmanager
    def resizing(self, storage: Any) -> Iterator[None]:
        """Capture that a storage gets other memory within the block, as FSDP does.

        Raises:
            CaptureError: The program had that memory before the capture.
        """
        is_taken = self._has_data and getattr(storage, "_kernbench", None) is not None
        if is_taken and not self.memory.give_up(storage):
            self.refuse(
                "UntypedStorage.resize_ of memory that is older than the capture",
                "resize it before",
            )
        yield
        if is_taken:
            self.memory.get_new(storage, len(self.steps))

    def wait_for(self, calling: Calling) -> None:
        """Capture that the current stream waits for a collective of the capture."""
        if self._process.capture is not self:
            return
        if self._has_data:
            calling.keep(len(self.steps), _branch(self._process))
            self._open.pop(calling, None)
        awaiting = Awaiting(_branch(self._process), calling)
        self.steps.append(awaiting)
        self.branches.meet(awaiting)

    def _add(self, call: Any, args: Any, kwargs: Any = None, results: Any = ()) -> None:
        order, place = self._process.order, None
        if order is not None:
            queue = _queue(self._process)
            forward = order.forward_of(queue)
            number = forward.number if isinstance(forward, CaptureQueue) else None
            place = queue.number, number, str(user_site())
        self.steps.append(DataStep(call, args, kwargs or {}, results, place=place))

    def waits(self, stream: DeviceStream, marker: Marker) -> bool:
        """Capture a stream's wait for an event; return False if the event is not captured."""
        return self.branches.wait(stream, marker)

    def _check(self, func: Any, operation: Operation, args: Any, kwargs: dict[str, Any]) -> None:
        if operation.is_read:
            self.refuse(f"a value that the host reads, as Tensor.item() does ({operation.name})")
        if _makes_what_data_says(func, args):
            self.refuse(f"{operation.name}, whose result has a data-dependent shape,")
        tensors = leaves((args, list(kwargs.values())))
        if operation.is_copy:
            places = {_is_of_device(tensor) for tensor in tensors}
            if MOVE.under_way:
                places.add(MOVE.target is not None)
            elif getattr(kwargs.get("device"), "type", "") == DEVICE_TYPE:
                places.add(True)
            if len(places) > 1 and not (kwargs.get("non_blocking") or args[2:3] == (True,)):
                self.refuse(
                    f"{operation.name} between host and device",
                    "copy with non_blocking=True from or to memory that stays",
                )
        elif (
            operation.name.startswith("aten.index")
            and any(tensor.dim() and not _is_of_device(tensor) for tensor in tensors)
            # In a backward pass C++ makes indices itself.
            and graph_task() == NO_BACKWARD
        ):
            self.refuse(f"{operation.name} with a host tensor", "move it before the capture")

    def refuse(self, what: str, instead: str = "do it before or after the capture") -> NoReturn:
        """Refuse what is not permitted on a capturing stream.

        Raises:
            CaptureError: Always.
        """
        self.refused = what
        raise CaptureError(
            f"{what}: operation not permitted when stream is capturing (the work is recorded for a "
            f"CUDA graph, and does not run yet, so that the host cannot wait for it); {instead}"
        )

    def end(self) -> None:
        """Let the process continue as before the capture.

        Raises:
            CaptureError: A stream that joined was not waited for, or something was refused.
        """
        process = self._process
        pool = process.private_pool
        process.capture = process.private_pool = None
        process.host.launches_as = "launch"
        for state, before in self._offsets.items():
            state.offset, state.position = before
        UNDER_WAY.discard(self)
        is_good = False
        try:
            self.branches.end()
            if self.refused:
                raise CaptureError(
                    "CUDAGraph.capture_end: operation failed due to a previous error during "
                    f"capture: {self.refused}"
                )
            is_good = True
        finally:
            with torch.no_grad(), unobserved():
                if is_good:
                    for calling in self._open:
                        calling.keep(len(self.steps), calling.branch)
                    assert pool is not None
                    self.memory.end_capture(process, pool, len(self.steps) + 1)
                else:
                    self.memory.restore()


def _queue(process: Process) -> CaptureQueue:
    queue = process.session.run.current_stream().queue
    assert isinstance(queue, CaptureQueue)
    return queue


def _branch(process: Process) -> int:
    return _queue(process).number


def end_all() -> None:
    """Drop captures that are under way."""
    UNDER_WAY.difference_update([value for value in UNDER_WAY if isinstance(value, Capture)])


_FAKE = torch._C._TorchDispatchModeKey.FAKE


def _makes_what_data_says(func: Any, args: Any) -> bool:
    """Return whether the shape of a result depends on the values of operands."""
    if func is torch.ops.aten.index.Tensor:
        return any(leaf.dtype in (torch.bool, torch.uint8) for leaf in leaves(args[1]))
    return not _NEEDS_DATA.isdisjoint(func.tags)


def _is_of_device(tensor: Tensor) -> bool:
    storage = storage_or_none(tensor)
    if storage is None:
        return True
    residence = getattr(storage, "_kernbench", None)
    return residence is not None and (residence.device is not None or residence.is_open)


def _compute_nothing() -> None:
    """Replace an operation in a run without data."""


def _device_tensor(tensor: Tensor) -> Tensor | None:
    return tensor if _is_of_device(tensor) else None


def _nothing(tensor: Tensor) -> None:
    """Bake in no tensor: each becomes a reference."""


def _host_number(tensor: Tensor) -> Tensor | None:
    """Return a copy of a host number, whose value is baked in; None for other tensors."""
    return None if tensor.dim() or _is_of_device(tensor) else tensor.clone()


def _on_host(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments for C++, which has devices' tensors on the host."""
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": CPU}
    return {**kwargs, "pin_memory": False} if kwargs.get("pin_memory") else kwargs
