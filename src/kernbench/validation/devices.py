"""Which machine stands for the device that a row was measured on."""

from __future__ import annotations

from functools import cache

from kernbench.errors import UnknownNameError, nearest
from kernbench.hardware import Machine, known_machines, load_machine


@cache
def known_devices() -> dict[str, str]:
    """Return the machine of every device name that the presets' ``devices`` list."""
    found: dict[str, str] = {}
    for name in known_machines():
        for device in load_machine(name).spec.devices:
            found[device] = name
    return found


@cache
def machine_of(device: str, num_sips: int = 1) -> Machine:
    """Return the machine of a device, with room for ``num_sips`` of them.

    Raises:
        UnknownNameError: No preset lists the device.
        UsageError: The preset has fewer SIPs.
    """
    known = known_devices()
    if device not in known:
        raise UnknownNameError(
            f"no machine lists the device {device!r} under devices: {nearest(device, known)}"
        )
    return load_machine(known[device], num_sips)
