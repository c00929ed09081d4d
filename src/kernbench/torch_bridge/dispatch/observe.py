"""Observes every operation of a simulated process: where it runs, what it costs."""

from __future__ import annotations

import os
from sys import _getframe
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch._prims.rng_prims import run_dtensor_rng_op

from kernbench.library_kernels import AutogradPhase
from kernbench.torch_bridge.base.direct import KnownCall, execute_first
from kernbench.torch_bridge.base.modes import Mode
from kernbench.torch_bridge.base.operation_timing import phase_now
from kernbench.torch_bridge.base.operations import (
    PLAIN,
    Operation,
    count_versions,
    describe,
    holds_memory,
    waits,
)
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.costs import check_operands, num_bytes
from kernbench.torch_bridge.device.pinned import NOT_PINNED, is_pinned, pinned
from kernbench.torch_bridge.device.rng import check_generator, device_generator, skip_numbers
from kernbench.torch_bridge.device.streams import refuse_in_capture
from kernbench.torch_bridge.dispatch.known_values import follow, with_known_ends
from kernbench.torch_bridge.dispatch.operands import (
    MIXED,
    are_open,
    check_named_results,
    ends_of_copy,
    is_for_device,
    is_of_graph,
    mark_of_host,
    residence_among,
    used_tensors,
    with_near_indices,
)
from kernbench.torch_bridge.dispatch.pricing import Pricing
from kernbench.torch_bridge.dispatch.shapes import Known, comes_back, copy_to_host
from kernbench.torch_bridge.dispatch.touching import Touching
from kernbench.torch_bridge.dispatch.wider_numbers import in_wider_numbers, with_dtypes_of_gpus
from kernbench.torch_bridge.placement.allocations import refuse_too_much
from kernbench.torch_bridge.placement.call_keys import look_at
from kernbench.torch_bridge.placement.in_use import check_named
from kernbench.torch_bridge.placement.moves import MOVE, UNDER_WAY
from kernbench.torch_bridge.placement.names import CPU, DEVICE_TYPE, EXECUTING, with_index
from kernbench.torch_bridge.placement.residence import Residence, residence_of, settle, settle_on
from kernbench.torch_bridge.placement.touched import begin_copy, look_at_copies
from kernbench.torch_bridge.processes.eager_host import EagerHost
from kernbench.torch_bridge.processes.float32 import Float32, overridden
from kernbench.torch_bridge.processes.gpu_trace import host_waits
from kernbench.torch_bridge.processes.process import Process, current
from kernbench.torch_bridge.processes.python_calls import (
    FRAMES_OF_OPERATION,
    FRAMES_OF_VIEW,
    IN_THREAD,
    ThreadCalls,
)
from kernbench.torch_bridge.processes.registrations import KEYSET

_FAKE = torch._C._TorchDispatchModeKey.FAKE
_is_seen = torch._C._is_torch_function_mode_enabled
"""Returns whether a mode of the program would see functions that are called here."""
_PROXY = torch._C._TorchDispatchModeKey.PROXY
_without_functions = torch._C.DisableTorchFunction
_dispatch_mode = torch._C._get_dispatch_mode
_ZERO_WITHOUT_MEMORY = torch.ops.aten._efficientzerotensor.default
_ZEROS = torch.ops.aten.zeros.default
_NUMBER = torch.ops.aten.scalar_tensor.default
"""The operation behind the assignment of a scalar to elements of a tensor."""
_STRIDED = torch.strided
_SIZE_BYTES = 8
"""Bytes of a result's size, which the host reads."""
DispatchKey = torch._C.DispatchKey
_OF_ANY_DEVICE = (DispatchKey.CompositeExplicitAutograd, DispatchKey.BackendSelect)
"""The keys of what calls the operations of an operator of functions."""
_OPERATIONS: dict[int, tuple[Operation, Any]] = {}
"""Operations by the identity of the overload, which the entry keeps alive: its own hash is slow
Python."""


class Observer(Mode):
    """Sees every operation of one thread, and executes and times it.

    Wrappers (DTensor and the like) are left to their own handlers, whose operations on the
    tensors inside come here.
    """

    supports_higher_order_operators = True

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._host = process.host
        self._owe = process.host.meet if isinstance(process.host, EagerHost) else None
        """Charges host time per operation; None where hosts take none for operations."""
        self._registrations = process.registrations
        self._registered = process.registrations.of_devices
        self._quick = process.registrations.quick
        """Views and plain operations seen so far; keys as in ``_OPERATIONS``."""
        self._place = process.session.place
        self._devices = process.session.devices
        self._spec = process.session.run.machine.spec
        self._touching: Touching | None = process.touching
        """Takes note of what is touched, under the sanitizer."""
        self.price(process.precision or overridden(Float32(), os.environ))

    def price(self, precision: Float32) -> None:
        """Set the costs of operations by the requested precision of float32 products."""
        pricing: Pricing = self._process.session.pricing(precision)
        self._costs, self._known = pricing.costs, pricing.known_calls
        self._shapes = pricing.shapes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Execute a view, or a known call of a plain operation; others take the general path."""
        operation = self._quick.get(id(func))
        if operation is None or types or _is_seen():
            return self._decide(func, types, args, kwargs or {})
        if operation.is_view:
            if args[0].layout is not _STRIDED:
                return _view_of_sparse(operation, args, kwargs or {})
            return operation.call(*args, **kwargs) if kwargs else operation.call(*args)
        if UNDER_WAY and (MOVE.under_way or self._process.capture is not None):
            return self._observe(func, operation, args, kwargs or {})
        key = look_at(operation, args, kwargs)
        if key is None:
            return self._observe(func, operation, args, kwargs or {})
        known = self._known.get(key)
        if known is None:
            return self._meet(func, operation, args, kwargs or {}, key)
        try:
            result = known.call(*args, **kwargs) if kwargs else known.call(*args)
        except NotImplementedError as error:
            result = in_wider_numbers(operation, args, kwargs or {}, error)
        sip_id = key[1]
        if operation.makes_memory:
            if type(result) is Tensor:
                settle_on(self._process, result, self._devices[sip_id], operation.name)
            else:
                _settle_all(result, self._devices[sip_id], operation.name)
        if self._touching is not None:
            self._touching.device(operation, args, kwargs or {}, result, sip_id)
        if self._owe is not None:
            self._owe(operation, args)
        phase = self._host.phase()
        timing = known.timing.by_phase[phase] or known.timing.in_phase(phase)
        self._host.launch(operation.name, timing, sip_id)
        return result

    def _decide(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Execute an operation in the way that its kind requires."""
        if _is_seen():
            with _without_functions():
                return self.__torch_dispatch__(func, types, args, kwargs)
        if isinstance(func, HigherOrderOperator):
            with self:
                return _kernel_of(func)(*args, **kwargs)
        if not all(map(_is_observed, types)):
            return NotImplemented
        pair = _OPERATIONS.get(id(func))
        if pair is None:
            pair = _OPERATIONS[id(func)] = with_dtypes_of_gpus(describe(func)), func
        operation = pair[0]
        kernel = self._registered.get(func._name) if self._registered else None
        if kernel is None and operation.is_custom:
            kernel = self._registrations.fallback_for(func)
        if kernel is not None and self._is_for(func, operation, args, kwargs):
            # The kernel runs below autograd; its own operations are observed.
            with self:
                result = kernel.call(KEYSET, args, kwargs)
            count_versions(args, operation.written)
            return result
        is_plain = operation.is_plain and self._shapes is None
        if kernel is None and (isinstance(args[0], Tensor) if operation.is_view else is_plain):
            self._quick[id(func)] = operation
        if operation.is_view:
            self._note_view()
            return _view_of_sparse(operation, args, kwargs)
        if operation.is_composite and _dispatch_mode(_FAKE) is None:
            if any(type(arg) is Tensor and arg.is_nested for arg in args):
                return self._observe(func, operation, args, kwargs)
            with self:
                return func.decompose(*args, **kwargs)
        return self._observe(func, operation, args, kwargs)

    def _note_view(self) -> None:
        """Note that a host that takes time for views executes one."""

    def _is_for(self, func: Any, operation: Operation, args: Any, kwargs: dict[str, Any]) -> bool:
        """Return whether a kernel that the program registered for devices takes a call."""
        if func in self._registrations.once:
            self._registrations.once.discard(func)
            return False
        if MOVE.under_way or _dispatch_mode(_FAKE) is not None:
            return False
        return is_for_device(operation, args, kwargs)

    def _meet(
        self,
        func: Any,
        operation: Operation,
        args: Any,
        kwargs: dict[str, Any],
        key: tuple[Any, ...],
    ) -> Any:
        """Execute the first call of a plain operation with this key, and keep its time."""
        call, name, sip_id = operation.call, operation.name, key[1]
        check_operands(operation, args, self._spec)
        try:
            result, call = execute_first(func, operation, args, kwargs)
        except NotImplementedError as error:
            result = in_wider_numbers(operation, args, kwargs, error)
        if operation.makes_memory:
            _settle_all(result, self._devices[sip_id], name)
        timing = self._costs.timing(func, operation, args, kwargs, result, sip_id)
        if name not in self._costs.unknown:
            self._known[key] = KnownCall(timing, call)
        if self._touching is not None:
            self._touching.device(operation, args, kwargs, result, sip_id)
        if self._owe is not None:
            self._owe(operation, args)
        self._host.launch(name, timing.in_phase(self._host.phase()), sip_id)
        return result

    def _observe(self, func: Any, operation: Operation, args: Any, kwargs: dict[str, Any]) -> Any:
        """Execute an operation on tensors that are not wrappers."""
        capture = self._process.capture
        if capture is not None and not capture.is_busy:
            return capture.observe(self._observe, func, operation, args, kwargs)
        if kwargs and (kwargs.get("device") is not None or kwargs.get("pin_memory")):
            return self._make(func, operation, args, kwargs)
        if operation.moves_indices:
            with self:
                args = with_near_indices(args)
        source = _residence_of_all(operation, args, kwargs)
        if source is MIXED:
            with self:
                return func._op_dk(operation.composed_at, *args, **kwargs)
        if MOVE.under_way:
            return self._move(func, operation, args, kwargs, source, MOVE.target)
        if source is None:
            if self._shapes is not None and comes_back(operation, args):
                return args[0]
            # Numbers that are made in a tensor of the program's have no other operand.
            source = residence_of(kwargs["out"]) if isinstance(kwargs.get("out"), Tensor) else None
            if source is None:
                return self._on_host(func, operation, args, kwargs)
        if operation.is_copy:
            return self._move(func, operation, args, kwargs, source, source.device)
        result, known = self._execute(func, operation, args, kwargs)
        if operation.makes_memory:
            settled = result[:1] if operation.has_host_results else result
            _settle_all(settled, source.device, operation.name)
        if self._touching is not None:
            self._touching.device(operation, args, kwargs, result, source.sip_id)
        self._launch(func, operation, args, kwargs, result, known, source.sip_id)
        return result

    def _make(self, func: Any, operation: Operation, args: Any, kwargs: dict[str, Any]) -> Any:
        """Execute an operation that makes tensors, on the device that is asked for."""
        if func is _ZERO_WITHOUT_MEMORY:
            # Below a dispatch mode PyTorch's kernels read the memory that such a tensor lacks.
            func = _ZEROS
        asked = kwargs.get("device")
        source = residence_among(operation, args)
        if kwargs.get("pin_memory"):
            return self._make_pinned(func, operation, args, kwargs, source)
        target: torch.device | None = None
        if asked is not None and asked.type == DEVICE_TYPE:
            if _dispatch_mode(_FAKE) is not None:
                # Shape propagation; a fake tensor on a device that C++ lacks cannot be copied.
                return func(*args, **{**kwargs, "device": CPU})
            target = with_index(asked)
            kwargs = {**kwargs, "device": self._place}
            if (tracing := _dispatch_mode(_PROXY)) is not None:
                result = self._move(func, operation, args, kwargs, source, target)
                # The graph has recorded where C++ made it.
                next(reversed(tracing.tracer.graph.nodes)).update_kwarg("device", asked)
                return result
        elif MOVE.under_way:
            target = MOVE.target
        elif asked is None or asked == self._place:
            # C++ passes this for tensors that belong on the operand's device.
            if source is not None:
                target = None if asked == CPU and is_of_graph(func) else source.device
            elif phase_now() is AutogradPhase.BACKWARD:
                return self._make_in_backward(func, operation, args, kwargs)
        return self._move(func, operation, args, kwargs, source, target)

    def _make_pinned(
        self,
        func: Any,
        operation: Operation,
        args: Any,
        kwargs: dict[str, Any],
        source: Residence | None,
    ) -> Any:
        """Execute an operation that makes tensors in pinned memory, which is the host's."""
        asked = kwargs.get("device")
        if MOVE.under_way:
            target = MOVE.target
        elif asked is not None:
            target = with_index(asked) if asked.type == DEVICE_TYPE else None
        else:
            target = None if source is None else source.device
        if target is not None:
            raise RuntimeError(NOT_PINNED)
        unpinned = {**kwargs, "pin_memory": False}
        return pinned(self._move(func, operation, args, unpinned, source, None))

    def _make_in_backward(
        self, func: Any, operation: Operation, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Execute an operation of a backward pass that names no device but may be meant for one."""
        if self._shapes is not None:
            device = self._devices[self._process.state.sip_id]
            return self._move(func, operation, args, kwargs, None, device)
        result = self._move(func, operation, args, kwargs, None, None)
        _leave_open(result)
        return result

    def _move(
        self,
        func: Any,
        operation: Operation,
        args: Any,
        kwargs: dict[str, Any],
        source: Residence | None,
        target: torch.device | None,
    ) -> Any:
        """Execute an operation whose result may be on another device than its operands."""
        if operation.full_name == "aten.copy_.default":
            source, target = ends_of_copy(args)
        if target is None and source is not None and operation.is_copy:
            return self._move_to_host(func, operation, args, kwargs, source)
        if target is None:
            result = self._on_host(func, operation, args, kwargs)
            if self._shapes is not None and func is _NUMBER:
                follow(func, operation, args, kwargs, result)
            return result
        result, known = self._execute(func, operation, args, kwargs)
        if operation.makes_memory:
            _settle_all(result, target, operation.name)
        sip_id = self._process.first_sip + target.index
        if self._touching is not None:
            self._touching.device(operation, args, kwargs, result, sip_id)
        if operation.is_copy and source is None:
            if self._owe is not None:
                self._owe(operation, args)
            command = self._copy("copy_from_host", sip_id, num_bytes((result,)))
            if kwargs.get("non_blocking") or args[2:] == (True,):
                begin_copy(self._process, args[len(args) > 1], command, writes=False)
            else:
                # PyTorch synchronizes the stream, whatever memory the copy comes from.
                self._host.wait(command)
                self._has_waited(sip_id)
        else:
            self._launch(func, operation, args, kwargs, result, known, sip_id)
        return result

    def _move_to_host(
        self, func: Any, operation: Operation, args: Any, kwargs: dict[str, Any], source: Residence
    ) -> Any:
        if self._shapes is None:
            result = func(*args, **kwargs)
        else:
            result = copy_to_host(operation, args, kwargs)
        if result is args[0]:
            # It is copied into memory that the program gives: to pinned memory alone CUDA goes on.
            wait = args[2:] != (True,) or not is_pinned(result)
        else:
            wait = not kwargs.get("non_blocking", False)
            if not wait:
                # CUDA pins the memory that an asynchronous copy writes.
                pinned(result)
        if self._touching is not None:
            self._touching.device(operation, args, kwargs, result, source.sip_id)
        if self._owe is not None:
            self._owe(operation, args)
        command = self._copy_to_host(source.sip_id, num_bytes((result,)), wait)
        if not wait:
            begin_copy(self._process, result, command, writes=True)
        return result

    def _execute(
        self, func: Any, operation: Operation, args: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, Known | None]:
        """Let PyTorch execute an operation, or only compute the shapes of its results."""
        check_operands(operation, args, self._spec)
        EXECUTING.depth += 1
        try:
            if self._shapes is not None:
                if operation.is_random:
                    skip_numbers(_first_numel(args), kwargs.get("generator"))
                return self._shapes.execute(func, operation, args, kwargs)
            if operation.is_random:
                check_generator(kwargs.get("generator"), DEVICE_TYPE)
                with device_generator(_first_numel(args), kwargs.get("generator")):
                    return func(*args, **kwargs), None
            return operation.call(*args, **kwargs), None
        except NotImplementedError as error:
            return in_wider_numbers(operation, args, kwargs, error), None
        except RuntimeError as error:
            refuse_too_much(self._process, error, operation.name)
            raise
        finally:
            EXECUTING.depth -= 1

    def _launch(
        self,
        func: Any,
        operation: Operation,
        args: Any,
        kwargs: dict[str, Any],
        result: Any,
        known: Known | None,
        sip_id: int,
    ) -> None:
        """Enqueue an operation on the current stream, with its time."""
        if self._owe is not None:
            self._owe(operation, args)
        if operation.is_free:
            return
        if operation.is_read:
            self._copy_to_host(sip_id, num_bytes(args))
            return
        if operation.has_choices:
            known = None
            if operation.ends_at is not None:
                args = with_known_ends(operation.ends_at, args)
        timing = None if known is None else known.timings.get(sip_id)
        if timing is None:
            timing = self._costs.timing(func, operation, args, kwargs, result, sip_id)
            if known is not None:
                known.timings[sip_id] = timing
        self._host.launch(operation.name, timing.in_phase(self._host.phase()), sip_id)
        if operation.may_wait and waits(operation, args, kwargs):
            self._copy_to_host(sip_id, _SIZE_BYTES)

    def _copy(self, kind: Any, sip_id: int, size_bytes: int) -> Any:
        template = self._process.session.run.transfers.build(kind, sip_id, size_bytes)
        return self._host.copy(template, sip_id)

    def _copy_to_host(self, sip_id: int, size_bytes: int, wait: bool = True) -> Any:
        command = self._copy("copy_to_host", sip_id, size_bytes)
        if wait:
            self._host.wait(command)
            self._has_waited(sip_id)
            self._host.read()
        return command

    def _has_waited(self, sip_id: int) -> None:
        """Note that the host has waited for the current stream of a device."""
        order = self._process.order
        host_waits(self._host.queue_of(sip_id))
        if order is not None:
            order.host_waits_for(self._host.queue_of(sip_id))

    def _on_host(self, func: Any, operation: Operation, args: Any, kwargs: dict[str, Any]) -> Any:
        """Execute an operation on memory of the host."""
        result = func(*args, **kwargs)
        # What is copied to a device by name C++ takes for a copy on its CPU.
        if operation.makes_memory and kwargs.get("device") is None:
            mark_of_host(args, result)
        if operation.is_random and not getattr(result, "is_meta", False):
            check_generator(kwargs.get("generator"), CPU.type)
        if phase_now() is AutogradPhase.BACKWARD and are_open(args):
            _leave_open(result)
        if self._touching is not None:
            self._touching.host(operation, args, kwargs, result)
        elif self._process.copies:
            look_at_copies(self._process, used_tensors(operation, args, kwargs), operation.name)
        return result


def _residence_of_all(operation: Operation, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the residence among all operands, and refuse those that a call may not name."""
    source = residence_among(operation, args, kwargs)
    if kwargs:
        check_named(operation, kwargs)
        check_named_results(operation, args, kwargs, source)
    return source


def _kernel_of(func: HigherOrderOperator) -> Any:
    """Return what calls the operations of an operator of functions."""
    for key in _OF_ANY_DEVICE:
        if key in func.py_kernels:
            return func.py_kernels[key]
    raise UnsupportedTorchError(
        f"torch.ops.higher_order.{func.name()}: PyTorch runs it in compiled functions only; call "
        "it inside of a function for torch.compile"
    )


class EagerObserver(Observer):
    """Sees the operations of a host whose Python takes time: that of the bridge is not counted."""

    def __init__(self, process: Process, calls: ThreadCalls) -> None:
        super().__init__(process)
        self._calls = calls
        assert process.host.calls is not None
        self._of_process = process.host.calls

    def _note_view(self) -> None:
        self._of_process.num_views += 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        calls = self._calls
        operation = self._quick.get(id(func))
        if operation is not None and operation.is_view and not types and not _is_seen():
            of_process = self._of_process
            of_process.num_views += 1
            if calls.is_on:
                of_process.num_own += FRAMES_OF_VIEW
            if args[0].layout is not _STRIDED:
                return _view_of_sparse(operation, args, kwargs or {})
            return operation.call(*args, **kwargs) if kwargs else operation.call(*args)
        of_process, frame = self._of_process, _getframe(1)
        if calls.depth:
            # What stands in for C++ has called it.
            if not of_process.is_over:
                of_process.comes_to(func, frame.f_code, frame.f_lasti)
            return _dispatch(self, func, types, args, kwargs)
        # A pause, without calls of its own: this is for every operation.
        calls.depth = 1
        if calls.is_on:
            calls.stop(FRAMES_OF_OPERATION)
        of_process.comes_to(func, frame.f_code, frame.f_lasti)
        try:
            return _dispatch(self, func, types, args, kwargs)
        finally:
            calls.depth = 0
            of_process.is_over = False
            if not of_process.is_known:
                calls.start()


_dispatch = Observer.__torch_dispatch__


def observer_of(process: Process) -> Observer:
    """Return what sees the operations of the calling thread."""
    calls = IN_THREAD.calls
    return Observer(process) if calls is None else EagerObserver(process, calls)


def _view_of_sparse(operation: Operation, args: Any, kwargs: dict[str, Any]) -> Any:
    """Execute a view: of a sparse tensor, what has the place of an element is other memory."""
    result = operation.call(*args, **kwargs)
    of = args[0] if isinstance(args[0], Tensor) else None
    if of is not None and of.layout is not _STRIDED:
        source = residence_of(of)
        if source is not None:
            _settle_all(result, source.device, operation.name)
    return result


def _settle_all(result: Any, device: torch.device | None, label: str) -> None:
    if type(result) is Tensor or isinstance(result, Tensor):
        settle(result, device, label)
    elif isinstance(result, (list, tuple)):
        for item in result:
            _settle_all(item, device, label)


def _leave_open(result: Any) -> None:
    if type(result) is Tensor:
        residence = settle(result, None)
        if residence is not None:
            residence.is_open = True


def _first_numel(args: Any) -> int:
    first = args[0] if args else None
    if isinstance(first, Tensor):
        return first.numel()
    if isinstance(first, (list, tuple)):
        size = 1
        for item in first:
            size *= int(item)
        return size
    return 1


def _is_observed(kind: type) -> bool:
    """Return whether tensors of a class are a mode's own, and have no dispatch of their own."""
    # A class that was given to a tensor, as vLLM's loader gives it, is met here first.
    return kind in PLAIN or kind.__name__ == "FakeTensor" or holds_memory(kind)


@run_dtensor_rng_op.py_impl(EagerObserver)
@run_dtensor_rng_op.py_impl(Observer)
def _dtensor_random(mode: Observer, start: int, end: int, op: Any, *args: Any, **kw: Any) -> Any:
    """Fill one shard of a DTensor with random numbers: equal offsets give equal numbers."""
    refuse_in_capture("random numbers of a DTensor")
    state = current().random_state
    # Ranks reach an offset by different draws.
    offset, state.position = state.offset, None
    state.go_to(offset + start)
    try:
        with mode:
            return op(*args, **kw)
    finally:
        state.go_to(offset + end)
        state.position = None
