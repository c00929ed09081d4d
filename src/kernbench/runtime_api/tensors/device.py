"""The name of a device: ``ahbm:3`` is SIP 3."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from kernbench.errors import UsageError

DEVICE_TYPE = "ahbm"


@dataclass(frozen=True, slots=True)
class Device:
    """One SIP, the value of ``tensor.device``."""

    index: int
    type: str = DEVICE_TYPE

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


def sip_of_device(given: Any, bound_sip: int, num_sips: int) -> int:
    """Return the SIP that a ``device=`` argument names; None and ``"ahbm"`` mean the bound one.

    Raises:
        UsageError: It names no SIP of this machine.
    """
    if given is None or given == DEVICE_TYPE:
        return bound_sip
    if isinstance(given, Device):
        index = given.index
    elif isinstance(given, str):
        kind, _, number = given.partition(":")
        if kind != DEVICE_TYPE or not number.isdecimal():
            raise UsageError(
                f"device must be {DEVICE_TYPE!r} or {DEVICE_TYPE + ':N'!r}, but got {given!r}"
            )
        index = int(number)
    else:
        try:
            index = operator.index(given)
        except TypeError:
            raise UsageError(
                f"device must be {DEVICE_TYPE!r}, {DEVICE_TYPE + ':N'!r} or a number, "
                f"but got {given!r}"
            ) from None
    return check_sip(index, num_sips)


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
