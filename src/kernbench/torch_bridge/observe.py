"""Every operation that PyTorch executes for a simulated process: where it runs, what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._prims.rng_prims import run_dtensor_rng_op
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.torch_bridge.commands import OperationCommand
from kernbench.torch_bridge.costs.operations import num_bytes
from kernbench.torch_bridge.device.moves import MOVE
from kernbench.torch_bridge.device.names import CPU, DEVICE_TYPE, EXECUTING, with_index
from kernbench.torch_bridge.device.residence import device_among, settle_all
from kernbench.torch_bridge.device.rng import device_generator
from kernbench.torch_bridge.process import Process, current

_FAKE = torch._C._TorchDispatchModeKey.FAKE
_dispatch_mode = torch._C._get_dispatch_mode
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})

# Collectives cost what their own part of the run says.
_FREE_NAMESPACES = frozenset({"prim", "_c10d_functional", "_c10d_functional_autograd", "c10d"})
# They reserve memory or show it differently; no kernel runs.
_FREE = frozenset(
    {
        "aten.detach.default",
        "aten.empty.memory_format",
        "aten.empty_like.default",
        "aten.empty_strided.default",
        "aten.lift_fresh.default",
        "aten.new_empty.default",
        "aten.new_empty_strided.default",
        "aten._unsafe_view.default",
        "aten.resize_.default",
    }
)
# Their result is on the host: the program waits until the device has computed it.
_READ_BY_HOST = frozenset(
    {
        "aten._local_scalar_dense.default",
        "aten.item.default",
        "aten.is_nonzero.default",
        "aten.equal.default",
    }
)


@dataclass(frozen=True, slots=True)
class _Operation:
    """What is asked of an operation whenever it is met, worked out once."""

    name: str
    full_name: str
    is_free: bool
    is_random: bool
    is_read: bool


_OPERATIONS: dict[Any, _Operation] = {}


def _operation(func: Any) -> _Operation:
    found = _OPERATIONS.get(func)
    if found is None:
        schema = func._schema
        shows = any(
            each.alias_info is not None and not each.alias_info.is_write for each in schema.returns
        )
        full_name = str(func)
        found = _OPERATIONS[func] = _Operation(
            name=str(func._overloadpacket),
            full_name=full_name,
            is_free=shows or func.namespace in _FREE_NAMESPACES or full_name in _FREE,
            is_random=torch.Tag.nondeterministic_seeded in func.tags,
            is_read=full_name in _READ_BY_HOST,
        )
    return found


class Observer(TorchDispatchMode):
    """Sees every operation of one thread.

    Wrappers (DTensor and the like) are left to their own handlers, whose operations on the
    tensors inside come here.
    """

    def __init__(self, process: Process) -> None:
        super().__init__()
        self.process = process

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for each in types:
            if each not in _PLAIN and each.__name__ != "FakeTensor":
                return NotImplemented
        kwargs = {} if kwargs is None else kwargs
        if _dispatch_mode(_FAKE) is not None:
            return _propagate_shapes(func, args, kwargs)
        operation = _operation(func)
        if operation.full_name == "aten.is_pinned.default":
            return False
        asked = kwargs.get("device")
        target, is_move = _target(asked, args)
        if asked is not None and asked.type == DEVICE_TYPE:
            kwargs = {**kwargs, "device": CPU}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if operation.is_random and target is not None:
            with device_generator(_first_numel(args)):
                result = _execute(func, args, kwargs)
        else:
            result = _execute(func, args, kwargs)
        if target is not None:
            settle_all(result, target)
        if not operation.is_free:
            self._charge(func, operation, args, result, target, is_move)
        return result

    def _charge(
        self,
        func: Any,
        operation: _Operation,
        args: Any,
        result: Any,
        target: torch.device | None,
        is_move: bool,
    ) -> None:
        """Put the operation on the current stream, if a device has part in it."""
        source = device_among(args)
        device = source if target is None else target
        if device is None:
            return
        process = self.process
        session = process.session
        run, sip_id = session.run, device.index
        if operation.is_read or (is_move and target is None):
            template = run.transfers.build("copy_to_host", sip_id, num_bytes((result,)))
        elif is_move and source is None:
            template = run.transfers.build("copy_from_host", sip_id, num_bytes((result,)))
        else:
            template = session.costs.template(func, operation.name, args, result, sip_id)
        command = OperationCommand(run, template, takes_pes=template.kind == "kernel")
        process.host.launch(command, run.queue_for(sip_id))
        if template.name == "copy_to_host":
            process.host.wait(command)


def _target(asked: Any, args: Any) -> tuple[torch.device | None, bool]:
    """Return where results go (None is the host), and whether operands come from elsewhere."""
    if asked is not None:
        target = with_index(asked) if asked.type == DEVICE_TYPE else None
        has_operand = bool(args) and isinstance(args[0], Tensor)
        return target, has_operand and device_among(args) != target
    if MOVE.under_way:
        return MOVE.target, True
    return device_among(args), False


def _execute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    EXECUTING.depth += 1
    try:
        return func(*args, **kwargs)
    finally:
        EXECUTING.depth -= 1


def _propagate_shapes(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do an operation on fake tensors: DTensor asks for a shape, the program for nothing."""
    device = kwargs.get("device")
    if device is not None and device.type == DEVICE_TYPE:
        # A fake tensor on a device that C++ was not built for cannot even be copied.
        kwargs = {**kwargs, "device": CPU}
    return _execute(func, args, kwargs)


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
