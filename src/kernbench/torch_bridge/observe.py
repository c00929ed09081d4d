"""Every operation that PyTorch executes for a simulated process: where it runs, what it costs."""

from __future__ import annotations

from sys import getrefcount
from typing import Any

import torch
from torch import Tensor
from torch._prims.rng_prims import run_dtensor_rng_op
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.torch_bridge.call_keys import is_meta, look_at, name_all
from kernbench.torch_bridge.costs import num_bytes
from kernbench.torch_bridge.device.in_use import check_use
from kernbench.torch_bridge.device.moves import MOVE
from kernbench.torch_bridge.device.names import CPU, DEVICE_TYPE, EXECUTING, with_index
from kernbench.torch_bridge.device.residence import (
    Residence,
    residence_of,
    settle,
    settle_beside,
    storage_of,
)
from kernbench.torch_bridge.device.rng import device_generator, skip_numbers
from kernbench.torch_bridge.operations import PLAIN, Operation, describe, holds_memory
from kernbench.torch_bridge.process import Process, current
from kernbench.torch_bridge.refusals import MixedDevicesError
from kernbench.torch_bridge.shapes import Known, zeros_on_host
from kernbench.torch_bridge.unwritten import begin_unwritten
from kernbench.torch_bridge.wider_numbers import in_wider_numbers

_FAKE = torch._C._TorchDispatchModeKey.FAKE
_dispatch_mode = torch._C._get_dispatch_mode
_graph_task = torch._C._current_graph_task_id
_ZERO_WITHOUT_MEMORY = torch.ops.aten._efficientzerotensor.default
_ZEROS = torch.ops.aten.zeros.default
_NO_BACKWARD = -1
_REFERENCES_OF_CPP = 3
"""References to an argument that only C++ knows: its own, that of the arguments, the count's."""
_OPERATIONS: dict[int, tuple[Operation, Any]] = {}
"""By the identity of the overload, which the entry keeps alive: its own hash is Python."""


class Observer(TorchDispatchMode):
    """Sees every operation of one thread.

    Wrappers (DTensor and the like) are left to their own handlers, whose operations on the
    tensors inside come here.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here; looking for that would take longer than the operation.
        return False

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._host = process.host
        self._costs = process.session.costs
        self._known = process.session.known_calls
        self._shapes = process.session.shapes
        self._place = process.session.place
        run = process.session.run
        self._is_checked = run.has_data and run.sanitizer is not None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for each in types:
            if each not in PLAIN and each.__name__ != "FakeTensor":
                return NotImplemented
        found = _OPERATIONS.get(id(func))
        if found is None:
            found = _OPERATIONS[id(func)] = describe(func), func
        operation = found[0]
        if operation.is_plain and self._shapes is None and not MOVE.under_way:
            return self._repeat(func, operation, args, kwargs)
        if operation.is_view:
            return operation.call(*args, **kwargs) if kwargs else operation.call(*args)
        if operation.is_composite and _dispatch_mode(_FAKE) is None:
            with self:
                return func.decompose(*args, **(kwargs or {}))
        return self._observe(func, operation, args, kwargs or {})

    def _repeat(
        self, func: Any, operation: Operation, args: Any, kwargs: dict[str, Any] | None
    ) -> Any:
        """Do a plain operation: what is known of an equal call need not be worked out again."""
        keys: list[Any] = [operation]
        source = look_at(args, keys)
        if source is None or (kwargs and not name_all(kwargs, keys)):
            return self._observe(func, operation, args, kwargs or {})
        sip_id = source.sip_id
        keys.append(sip_id)
        key = tuple(keys)
        timing = self._known.get(key)
        try:
            result = operation.call(*args, **kwargs) if kwargs else operation.call(*args)
        except NotImplementedError as error:
            result = in_wider_numbers(operation, args, kwargs or {}, error)
        name = operation.name
        if operation.makes_memory:
            if type(result) is Tensor:
                settle_beside(self._process, result, source, name)
            else:
                _settle_all(result, source.device, name)
        if timing is None:
            timing = self._costs.timing(func, operation, args, kwargs or {}, result, sip_id)
            if name not in self._costs.unknown:
                self._known[key] = timing
        self._host.launch(name, timing, sip_id)
        return result

    def _observe(self, func: Any, operation: Operation, args: Any, kwargs: dict[str, Any]) -> Any:
        """Do an operation on tensors that are no wrappers."""
        if kwargs and (kwargs.get("device") is not None or kwargs.get("pin_memory")):
            return self._make(func, operation, args, kwargs)
        source = _residence_among(operation, args)
        if MOVE.under_way:
            return self._move(func, operation, args, kwargs, source, MOVE.target)
        if source is None:
            return func(*args, **kwargs)
        if operation.is_copy:
            return self._move(func, operation, args, kwargs, source, source.device)
        result, known = self._execute(func, operation, args, kwargs)
        if operation.makes_memory:
            settled = result[:1] if operation.has_host_results else result
            _settle_all(settled, source.device, operation.name)
        if operation.is_read:
            self._copy_to_host(source.sip_id, num_bytes(args))
        else:
            self._launch(func, operation, args, kwargs, result, known, source.sip_id)
        return result

    def _make(self, func: Any, operation: Operation, args: Any, kwargs: dict[str, Any]) -> Any:
        """Do an operation that is told where its result goes."""
        if func is _ZERO_WITHOUT_MEMORY:
            # Below a dispatch mode PyTorch's kernels read the memory that such a tensor lacks.
            func = _ZEROS
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        asked = kwargs.get("device")
        source = _residence_among(operation, args)
        target: torch.device | None = None
        if asked is not None and asked.type == DEVICE_TYPE:
            if _dispatch_mode(_FAKE) is not None:
                # Shape propagation; a fake tensor on a device that C++ lacks cannot be copied.
                return func(*args, **{**kwargs, "device": CPU})
            target = with_index(asked)
            kwargs = {**kwargs, "device": self._place}
        elif MOVE.under_way:
            target = MOVE.target
        elif asked is None or asked == self._place:
            # C++ says so of tensors that are to be where the operand is.
            if source is not None:
                target = source.device
            elif _graph_task() != _NO_BACKWARD:
                return self._make_in_backward(func, operation, args, kwargs)
        return self._move(func, operation, args, kwargs, source, target)

    def _make_in_backward(
        self, func: Any, operation: Operation, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Do an operation that C++ may mean for a device: it names the place of its tensors."""
        if self._shapes is not None:
            device = torch.device(DEVICE_TYPE, self._process.state.sip_id)
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
        """Do an operation whose result may be elsewhere than its operands."""
        if operation.full_name == "aten.copy_.default":
            source, target = _ends_of_copy(args)
        if target is None and source is not None and operation.is_copy:
            return self._move_to_host(func, operation, args, kwargs, source)
        if target is None:
            return func(*args, **kwargs)
        result, known = self._execute(func, operation, args, kwargs)
        if operation.makes_memory:
            _settle_all(result, target, operation.name)
        if operation.is_copy and source is None:
            self._copy("copy_from_host", target.index, num_bytes((result,)))
        else:
            self._launch(func, operation, args, kwargs, result, known, target.index)
        return result

    def _move_to_host(
        self, func: Any, operation: Operation, args: Any, kwargs: dict[str, Any], source: Residence
    ) -> Any:
        if self._shapes is None:
            result = func(*args, **kwargs)
        else:
            result = zeros_on_host(operation, args, kwargs)
        wait = not kwargs.get("non_blocking", False)
        self._copy_to_host(source.sip_id, num_bytes((result,)), wait)
        return result

    def _execute(
        self, func: Any, operation: Operation, args: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, Known | None]:
        """Let PyTorch do it, or work out the shape of what it would give."""
        EXECUTING.depth += 1
        try:
            if self._shapes is not None:
                if operation.is_random:
                    skip_numbers(_first_numel(args))
                return self._shapes.execute(func, operation, args, kwargs)
            if operation.is_random:
                with device_generator(_first_numel(args)):
                    return func(*args, **kwargs), None
            return func(*args, **kwargs), None
        except NotImplementedError as error:
            return in_wider_numbers(operation, args, kwargs, error), None
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
        """Put it on the current stream, at its cost."""
        if operation.is_free:
            if self._is_checked and operation.makes_empty:
                begin_unwritten(result)
            return
        timing = None if known is None else known.timings.get(sip_id)
        if timing is None:
            timing = self._costs.timing(func, operation, args, kwargs, result, sip_id)
            if known is not None:
                known.timings[sip_id] = timing
        self._host.launch(operation.name, timing, sip_id)

    def _copy(self, kind: Any, sip_id: int, size_bytes: int) -> Any:
        template = self._process.session.run.transfers.build(kind, sip_id, size_bytes)
        return self._host.copy(template, sip_id)

    def _copy_to_host(self, sip_id: int, size_bytes: int, wait: bool = True) -> None:
        command = self._copy("copy_to_host", sip_id, size_bytes)
        if wait:
            self._host.wait(command)


def _residence_among(operation: Operation, args: Any) -> Residence | None:
    """Return where the first tensor among arguments is that is on a device.

    Raises:
        UsageError: A tensor is in use by a collective that was not waited for.
        RuntimeError: Tensors of host and device do not mix.
    """
    found: Residence | None = None
    has_host = False
    for arg in args:
        kind = type(arg)
        if kind in PLAIN or (isinstance(arg, Tensor) and holds_memory(kind)):
            try:
                residence = getattr(storage_of(arg), "_kernbench", None)
            except (NotImplementedError, RuntimeError):
                continue
            if residence is None:
                has_host |= not is_meta(arg)
                continue
            if residence.uses and not operation.is_free:
                check_use(operation, args, arg, residence)
            if residence.device is None:
                has_host |= not residence.is_open
                continue
        elif isinstance(arg, (list, tuple)):
            residence = _residence_among(operation, arg)
            if residence is None:
                continue
        else:
            continue
        if found is None:
            found = residence
        elif found.device is not residence.device and found.device != residence.device:
            _refuse_mix(operation, found.device, residence.device)
    if found is not None and has_host:
        arg = None  # It would count as a reference to a tensor.
        _check_host(operation, found.device, args)
    return found


def _check_host(operation: Operation, device: Any, args: Any) -> None:
    """Refuse tensors of the host beside those of a device, unless they are numbers.

    One that no Python code refers to is none of the program's: C++ has made it on its way through a
    composite operation, to go with the device's tensors, and that is where it goes.
    """
    for position in range(len(args) if operation.is_on_one_device else 0):
        if type(args[position]) not in PLAIN or not args[position].dim():
            continue
        if args[position].layout is not torch.strided:  # It has no storage, and goes with both.
            continue
        residence = getattr(storage_of(args[position]), "_kernbench", None)
        is_host = residence is None or (residence.device is None and not residence.is_open)
        if not is_host or is_meta(args[position]):
            continue
        if getrefcount(args[position]) > _REFERENCES_OF_CPP:
            _refuse_mix(operation, device, CPU)
        settle(args[position], device, operation.name)


def _refuse_mix(operation: Operation, first: Any, second: Any) -> None:
    if not operation.is_on_one_device:
        return
    raise MixedDevicesError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{first} and {second}! ({operation.full_name})"
    )


def _ends_of_copy(args: Any) -> tuple[Residence | None, torch.device | None]:
    """Return where ``copy_`` reads, and where it writes."""
    target, source = map(residence_of, args[:2])
    return source, None if target is None else target.device


def _settle_all(result: Any, device: torch.device | None, label: str) -> None:
    if type(result) is Tensor or isinstance(result, Tensor):
        settle(result, device, label)
    elif isinstance(result, (list, tuple)):
        for each in result:
            _settle_all(each, device, label)


def _leave_open(result: Any) -> None:
    if type(result) is Tensor:
        made = settle(result, None)
        if made is not None:
            made.is_open = True


def _first_numel(args: Any) -> int:
    first = args[0] if args else None
    if isinstance(first, Tensor):
        return first.numel()
    if isinstance(first, (list, tuple)):
        size = 1
        for each in first:
            size *= int(each)
        return size
    return 1


@run_dtensor_rng_op.py_impl(Observer)
def _dtensor_random(mode: Observer, start: int, end: int, op: Any, *args: Any, **kw: Any) -> Any:
    """Fill one shard of a DTensor: equal offsets give equal numbers."""
    process = current()
    seed, offset = process.device_rng
    process.device_rng = (seed, offset + start)
    try:
        with mode:
            return op(*args, **kw)
    finally:
        process.device_rng = (seed, offset + end)
