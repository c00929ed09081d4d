"""Which device the operands of an operation are on."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from sys import getrefcount
from types import FrameType
from typing import Any

import torch
import torch.fx.interpreter
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from kernbench.torch_bridge.base.operations import OF_INDICES, PLAIN, Operation, holds_memory
from kernbench.torch_bridge.base.refusals import MixedDevicesError
from kernbench.torch_bridge.placement.call_keys import is_meta
from kernbench.torch_bridge.placement.in_use import check_use
from kernbench.torch_bridge.placement.names import CPU, is_simulated
from kernbench.torch_bridge.placement.residence import (
    Residence,
    known_residence,
    residence_of,
    settle,
    storage_of,
)

_HERE = str(Path(__file__).parents[1])
_OVERLOADS = torch._ops.__file__
_GRAPH = "<eval_with_key>"
"""How the file of a traced graph's code is named."""
_INTERPRETER = torch.fx.interpreter.__file__
_MOST_FRAMES = 24
"""Between a graph and the observer, with some modes of the program."""
_ANYWHERE = Residence(None)
"""The residence of wrappers, and of sparse tensors of the host: they go with both."""
_ANYWHERE.is_open = True
MIXED = Residence(None)
"""The residence of operands of a composed operation that are in several places."""
_MAY_HOLD = (Tensor, list, tuple)
_OF_HOST = "_kernbench_of_host"
"""The attribute of a storage that was computed of the program's host tensors."""
_REFERENCES_OF_CPP = 3
"""References to an argument that only C++ holds: its own, the argument tuple's, the count's."""


def residence_among(
    operation: Operation, args: Any, kwargs: dict[str, Any] | None = None
) -> Residence | None:
    """Return the residence of the first argument that is a device tensor.

    :data:`MIXED` if others are elsewhere, and what the operation is composed of says if they may.

    Raises:
        UsageError: A tensor is in use by a collective that was not waited for.
        RuntimeError: Tensors of host and device do not mix.
    """
    kwargs = kwargs or {}
    result, has_host, are_several = _look(operation, args, None, operation.full_name in OF_INDICES)
    for name in kwargs:
        if isinstance(kwargs[name], _MAY_HOLD) and name not in operation.written_names:
            result, host, several = _look(operation, (kwargs[name],), result, False)
            has_host, are_several = has_host or host, are_several or several
    if result is not None and has_host and (operation.is_on_one_device or operation.composed_at):
        for operands in (args, kwargs):
            are_several |= _meet_host(operation, result.device, operands)
    return MIXED if are_several and operation.composed_at is not None else result


def _look(
    operation: Operation, args: Any, result: Residence | None, has_indices: bool
) -> tuple[Residence | None, bool, bool]:
    """Return the residence of the first device tensor, and whether others are elsewhere.

    That is, on the host (but for indices in a list), and on another device.
    """
    has_host = are_several = False
    for arg in args:
        kind = type(arg)
        if kind in PLAIN or (isinstance(arg, Tensor) and holds_memory(kind)):
            try:
                residence = getattr(storage_of(arg), "_kernbench", None)
            except (NotImplementedError, RuntimeError):
                residence = known_residence(arg) or _ANYWHERE
            if residence is None:
                has_host |= not is_meta(arg)
                continue
            if residence.uses and not operation.is_free:
                check_use(operation, args, arg, residence)
            if residence.device is None:
                has_host |= not residence.is_open
                continue
        elif isinstance(arg, (list, tuple)):
            residence, host, several = _look(operation, arg, result, False)
            has_host |= host and not has_indices
            are_several |= several
            if residence is None:
                continue
        else:
            continue
        if result is None:
            result = residence
        elif result.device is not residence.device and result.device != residence.device:
            if operation.is_on_one_device:
                _refuse_mix(operation, result.device, residence.device)
            are_several = True
    return result, has_host, are_several


def is_for_device(operation: Operation, args: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether a call is for a device, as CUDA's dispatch would decide.

    Raises:
        UsageError: A tensor is in use by a collective that was not waited for.
        RuntimeError: Tensors of host and device do not mix.
    """
    values = (*args, *kwargs.values())
    if residence_among(operation, values) is not None:
        return True
    return not leaves(values) and any(
        isinstance(value, torch.device) and is_simulated(value) for value in values
    )


def _meet_host(operation: Operation, device: Any, args: Any) -> bool:
    """Refuse host tensors among device tensors, but for numbers that an operation may read.

    One that no Python code refers to is not the program's, unless it was computed of the
    program's: C++ made it inside a composite operation, for use with the device tensors, and it is
    placed on their device. Of a composed operation return whether there is one of the program's.
    """
    is_own = False
    for position in args if isinstance(args, dict) else range(len(args)):
        if isinstance(args[position], (list, tuple)):
            if operation.full_name not in OF_INDICES:
                is_own |= _meet_host(operation, device, args[position])
            continue
        if type(args[position]) not in PLAIN or position in operation.written_names:
            continue
        takes_number = operation.takes_numbers and position not in operation.written
        if takes_number and not args[position].dim():
            continue
        if args[position].layout is not torch.strided:  # It has no storage, and goes with both.
            continue
        storage = storage_of(args[position])
        residence = getattr(storage, "_kernbench", None)
        is_host = residence is None or (residence.device is None and not residence.is_open)
        if not is_host or is_meta(args[position]):
            continue
        if not (hasattr(storage, _OF_HOST) or not _is_of_cpp(args, position)):
            settle(args[position], device, operation.name)
        elif operation.composed_at is None:
            _refuse_mix(operation, device, CPU)
        else:
            is_own = True
            setattr(storage, _OF_HOST, True)  # Below autograd, its views will have no base.
    return is_own


def mark_of_host(args: Any, result: Any) -> None:
    """Mark results that are of the program's host tensors: they are there, whoever makes them."""
    for position in range(len(args)):
        if type(args[position]) not in PLAIN or args[position].layout is not torch.strided:
            continue
        if _is_of_cpp(args, position) and not hasattr(storage_of(args[position]), _OF_HOST):
            continue
        for item in result if type(result) is tuple else (result,):
            if type(item) in PLAIN and item.layout is torch.strided:
                setattr(storage_of(item), _OF_HOST, True)
        return


def check_named_results(
    operation: Operation, args: Any, kwargs: dict[str, Any], source: Residence | None
) -> None:
    """Refuse a tensor for a result (``out``) that is elsewhere than what it is computed of.

    Raises:
        RuntimeError: It is.
    """
    device = None if source is None else source.device
    for name in operation.written_names.intersection(kwargs):
        out = kwargs[name]
        if type(out) not in PLAIN or not any(tensor.dim() for tensor in leaves(args)):
            continue
        known = known_residence(out)
        place = None if known is None else known.device
        out = None  # A variable would count as a reference to a tensor.
        if place is None and device is not None and _is_of_cpp(kwargs, name):
            settle(kwargs[name], device, operation.name)
        elif place != device and not is_meta(kwargs[name]):
            _refuse_mix(operation, device or CPU, place or CPU)


def _is_of_cpp(args: Any, position: Any) -> bool:
    """Return whether no Python code refers to an argument, nor to the tensor that it is a view of.

    The caller has no variable for it.
    """
    if getrefcount(args[position]) > _REFERENCES_OF_CPP:
        # Modes refer to it too.
        of_modes = _references_of_modes(args, position)
        if getrefcount(args[position]) > _REFERENCES_OF_CPP + of_modes:
            return False
    # C++ makes views of the program's tensors, too.
    base = args[position]._base
    return base is None or getrefcount(base) <= _REFERENCES_OF_CPP


def _references_of_modes(args: Any, position: int) -> int:
    """Return how many references the program's dispatch modes hold to an argument they pass on."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename != _OVERLOADS:
        return 0  # They pass on by overload.
    frames: list[FrameType] = []
    num_of_modes = 0
    while frame is not None:
        frames.append(frame)
        if frame.f_code.co_name == "__torch_dispatch__":
            num_of_modes = len(frames)
        frame = frame.f_back
    passed = 0
    # Not those of the program: they would keep in f_locals what their variables refer to now.
    for frame in frames[:num_of_modes]:
        for value in frame.f_locals.values():
            if value is args[position]:
                # One reference of the variable, and one of f_locals.
                passed += 2
            elif type(value) in (tuple, list, dict):
                items = value.values() if type(value) is dict else value
                passed += sum(item is args[position] for item in items)
        if frame.f_code.co_name == "__call__" and frame.f_code.co_filename == _OVERLOADS:
            passed += _passed_by_overloads()
    return passed


@cache
def _passed_by_overloads() -> int:
    """Return how many more references C++ holds to an argument of a call by overload."""

    class Count(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            numbers.append(getrefcount(args[0]))
            return args[0].detach()

    numbers: list[int] = []
    tensor = torch.empty(0)
    with _disable_current_modes(), Count():
        torch.neg(tensor)
        torch.ops.aten.neg.default(tensor)
    directly, by_overload = numbers
    # One reference is that of the overload's Python code.
    return by_overload - directly - 1


def is_of_graph(func: Any) -> bool:
    """Return whether a traced graph calls an operation: a device that it names is meant.

    C++ names the host for what belongs on a device, as it has that device's tensors there.
    """
    inner, frame = None, sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        outer = frame.f_back
        if outer is None:
            break
        inner, frame = frame, outer
        file = frame.f_code.co_filename
        if file.startswith(_GRAPH) or file == _INTERPRETER:
            # Between them are modes; one that C++ calls has another operation.
            return inner.f_code.co_filename == _OVERLOADS and inner.f_locals.get("self") is func
    return False


def _refuse_mix(operation: Operation, first: Any, second: Any) -> None:
    raise MixedDevicesError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{first} and {second}! ({operation.full_name})"
    )


def ends_of_copy(args: Any) -> tuple[Residence | None, torch.device | None]:
    """Return the source and the target device of a ``copy_``.

    What C++ has made inside a composite operation to copy a device's tensors into is on the device.
    """
    target = residence_of(args[0])
    # It may be a number.
    source = residence_of(args[1]) if isinstance(args[1], Tensor) else None
    if (
        target is None
        and source is not None
        and source.device is not None
        and type(args[0]) in PLAIN
        and args[0].layout is torch.strided
        # Of these PyTorch does not say whether they are views.
        and not args[0].is_inference()
        and not hasattr(storage_of(args[0]), _OF_HOST)
        and _is_of_cpp(args, 0)
    ):
        target = settle(args[0], source.device, "copy_")
    return source, None if target is None else target.device


def with_near_indices(args: Any) -> Any:
    """Return the arguments of ``index_put_``, with what is elsewhere on the device of its tensor.

    These are indices, and a value without dims; where there is a mask, the places that it has.
    Source: ``make_info`` and ``_index_put_impl_`` of PyTorch's ``TensorAdvancedIndexing.cpp``.
    """
    target = residence_of(args[0])
    device = CPU if target is None or target.device is None else target.device
    far = [_is_far(arg, device) for arg in args[1]]
    is_far_value = not args[2].dim() and _is_far(args[2], device)
    if not (any(far) or is_far_value) or (target is not None and target.is_open):
        return args
    if device is CPU and _is_of_cpp(args, 0):
        return args
    indices: list[Any] = []
    for index, is_far in zip(args[1], far, strict=True):
        if is_far and index.dtype in (torch.bool, torch.uint8):
            indices += [item.to(device) for item in index.nonzero().unbind(1)]
        else:
            indices.append(index.to(device) if is_far else index)
    value = args[2].to(device) if is_far_value else args[2]
    return (args[0], indices, value, *args[3:])


def _is_far(tensor: Any, device: torch.device) -> bool:
    """Return whether a tensor is on another simulated device."""
    residence = residence_of(tensor) if isinstance(tensor, Tensor) else None
    return residence is not None and residence.device is not None and residence.device != device


def are_open(args: Any) -> bool:
    """Return whether C++ has made all tensors of a call, maybe for a device (``is_open``)."""
    residences = [known_residence(tensor) for tensor in leaves(args)]
    return bool(residences) and all(item is not None and item.is_open for item in residences)


def leaves(values: Any) -> list[Tensor]:
    """Return the tensors among nested values, in order."""
    tensors: list[Tensor] = []
    pending: list[Any] = [values]
    while pending:
        value = pending.pop()
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            pending.extend(reversed(value))
    return tensors


def written_tensors(func: Any, operation: Operation, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the tensors that a call writes."""
    tensors: list[Tensor] = []
    for position in operation.changed:
        if position < len(args):
            tensors += leaves(args[position])
        else:
            tensors += leaves(kwargs.get(func._schema.arguments[position].name))
    return tensors


def used_tensors(
    operation: Operation, args: Any, kwargs: dict[str, Any]
) -> list[tuple[Tensor, bool]]:
    """Return the tensors that a call is given, and for each whether the call writes it."""
    tensors: list[tuple[Tensor, bool]] = []
    for position, argument in enumerate(args):
        writes = position in operation.changed
        tensors += [(tensor, writes) for tensor in leaves(argument)]
    for name, value in kwargs.items():
        writes = name in operation.written_names
        tensors += [(tensor, writes) for tensor in leaves(value)]
    return tensors
