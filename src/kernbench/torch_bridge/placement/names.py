"""Device arguments: which simulated device, if any, a program refers to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch.utils._python_dispatch import _disable_current_modes, _pop_mode, _push_mode

from kernbench.errors import UsageError
from kernbench.torch_bridge.base.device_limit import MOST_DEVICES
from kernbench.torch_bridge.processes.process import current

DEVICE_TYPE = "cuda"
CPU = torch.device("cpu")
META = torch.device("meta")
_without_functions = torch._C.DisableTorchFunction


# ``torch.cuda.get_device_properties`` raises the last one, in Python.
class InvalidDeviceError(UsageError, torch.AcceleratorError, AssertionError):
    """A program names a device that its host does not have; it may catch what PyTorch raises."""


class _Executing(threading.local):
    depth = 0


EXECUTING = _Executing()
"""Above 0 while PyTorch itself executes an operation: tensors then report C++'s device."""


@contextmanager
def executing() -> Iterator[None]:
    """Let tensors report the device that C++ has them on."""
    EXECUTING.depth += 1
    try:
        yield
    finally:
        EXECUTING.depth -= 1


@contextmanager
def without_modes() -> Iterator[None]:
    """Let no dispatch mode see what PyTorch computes: as PyTorch does, in half the time."""
    if _len_torch_dispatch_stack_pre_dispatch():
        with _disable_current_modes():
            yield
        return
    modes = [_pop_mode() for _ in range(torch._C._len_torch_dispatch_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)


@contextmanager
def unobserved() -> Iterator[None]:
    """Let PyTorch compute with tensors as C++ has them, unobserved and at no cost.

    The program's default device does not apply to new tensors either.
    """
    with executing(), _without_functions(), without_modes():
        yield


def is_simulated(device: Any) -> bool:
    """Return whether a device argument names a simulated device."""
    if isinstance(device, torch.device):
        return device.type == DEVICE_TYPE
    if isinstance(device, str):
        return device.partition(":")[0] == DEVICE_TYPE
    return type(device) is int


def current_index() -> int:
    """Return the index of the calling rank's current device."""
    # PyTorch caches some results for all ranks, so they must not name one rank's device.
    if EXECUTING.depth:
        return 0
    process = current()
    return process.state.sip_id - process.first_sip


def sip_of(device: Any) -> int:
    """Return the SIP that a device argument means to the calling rank: one of its own host.

    Raises:
        InvalidDeviceError: The host has no such device.
    """
    index: int = with_index(device).index
    return current().first_sip + index


def device_at(sip_id: int) -> torch.device:
    """Return the device as which programs of its host know a SIP."""
    return current().session.devices[sip_id]


def with_index(device: Any) -> torch.device:
    """Return the simulated device of an argument, with its index.

    Raises:
        InvalidDeviceError: The machine has no such device.
    """
    number = device if type(device) is int else _number_in(device)
    if number >= MOST_DEVICES:
        # Before PyTorch truncates it to 8 bits, which would name another device.
        check_index(number)
    try:
        index = torch.device(DEVICE_TYPE, device) if type(device) is int else torch.device(device)
    except (RuntimeError, TypeError) as error:
        # PyTorch's own words for the program, whose mistake it is.
        raise type(error)(str(error)) from None
    if index.index is None:
        return torch.device(DEVICE_TYPE, current_index())
    check_index(index.index)
    return index


def check_name(device: Any) -> None:
    """Refuse a device's name whose number PyTorch would cut to 8 bits: it would mean another.

    Raises:
        InvalidDeviceError: It has such a number; the machine has no such device.
    """
    if type(device) is str and _number_in(device) >= MOST_DEVICES and is_simulated(device):
        check_index(_number_in(device))


def _number_in(device: Any) -> int:
    number = device.rpartition(":")[2] if isinstance(device, str) else ""
    return int(number) if number.isdecimal() else -1


def check_index(index: int) -> None:
    """Refuse a device that the machine does not have.

    Raises:
        InvalidDeviceError: It has not.
    """
    session = current().session
    count, machine = session.num_devices, session.run.machine
    if 0 <= index < count:
        return
    devices = f"{count} devices (0 to {count - 1})"
    if index < 0:
        asked = f"{DEVICE_TYPE}:{index + 2 * MOST_DEVICES}, as PyTorch keeps 8 bits of a number"
        reason = f"it is what torch.device makes of {asked}; machine {machine.name} has {devices}"
    elif machine.num_hosts > 1:
        advice = "a rank's device is its LOCAL_RANK, not its RANK"
        reason = f"each node of machine {machine.name} has {devices}; {advice}"
    elif count < machine.num_sips:
        reason = (
            f"of the {machine.num_sips} devices of machine {machine.name} PyTorch can number "
            f"{count} (0 to {count - 1})"
        )
    else:
        reason = f"machine {machine.name} has {devices}; take a larger one with --machine"
    missing = f"{DEVICE_TYPE}:{index} does not exist: {reason}"
    raise InvalidDeviceError(f"CUDA error: invalid device ordinal: {missing}")
