"""The name of a device: ``h100-sxm:3`` is SIP 3 of an h100-sxm."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from kernbench.errors import UsageError
from kernbench.hardware import Machine

DEVICE_TYPES = ("ahbm", "cuda")
"""What any machine's devices may be called; they print by the machine's own name."""


@dataclass(frozen=True, slots=True)
class Device:
    """One SIP, the value of ``tensor.device``."""

    index: int
    type: str = DEVICE_TYPES[0]

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


def names_device(value: Any, machine: Machine) -> bool:
    """Return whether something is a device's name, number or object, and not a dtype."""
    if isinstance(value, (Device, int)):
        return True
    return isinstance(value, str) and value.partition(":")[0] in (machine.name, *DEVICE_TYPES)


def sip_of_device(value: Any, bound_sip: int, machine: Machine) -> int:
    """Return the SIP that a ``device=`` argument names; None and a bare name mean the bound one.

    Raises:
        UsageError: It names no SIP of this machine.
    """
    if value is None or value == machine.name or value in DEVICE_TYPES:
        return bound_sip
    if isinstance(value, Device):
        return check_sip(value.index, machine.num_sips)
    names = f"{machine.name!r}, {machine.name + ':N'!r}, 'cuda', 'cuda:N'"
    if isinstance(value, str):
        number = value.rpartition(":")[2]
        if not names_device(value, machine) or not number.isdecimal():
            raise UsageError(f"device must be {names}, but got {value!r}")
        return check_sip(int(number), machine.num_sips)
    try:
        index = operator.index(value)
    except TypeError:
        raise UsageError(f"device must be {names} or a number, but got {value!r}") from None
    return check_sip(index, machine.num_sips)


def check_sip(index: int, num_sips: int) -> int:
    """Return ``index``, checked to be a SIP of this machine.

    Raises:
        UsageError: It is not.
    """
    if not 0 <= index < num_sips:
        raise UsageError(
            f"SIP {index} does not exist: this machine has {num_sips} SIPs "
            f"(0 to {num_sips - 1}); ask for more ranks or a larger machine"
        )
    return index
