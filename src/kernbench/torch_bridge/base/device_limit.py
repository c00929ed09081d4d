"""How many devices PyTorch can tell apart, and with them, how many ranks a program may have."""

from __future__ import annotations

from kernbench.errors import UsageError

MOST_DEVICES = 128
"""PyTorch keeps the index of a device in 8 bits with a sign: ``cuda:128`` becomes ``cuda:-128``.

Source: c10/core/Device.h, ``using DeviceIndex = int8_t``.
"""


def check_ranks(nprocs: int, asked: str) -> None:
    """Refuse more ranks than PyTorch has numbers for devices.

    Raises:
        UsageError: There are more; says what was ``asked``.
    """
    if nprocs > MOST_DEVICES:
        raise UsageError(
            f"{asked} asks for {nprocs} ranks, but PyTorch numbers devices with 8 bits, so a "
            f"program may have at most {MOST_DEVICES} ranks, each with a device of its own; start "
            f"{MOST_DEVICES} or fewer, or write it as a bench for `kernbench run`, which has no "
            "such limit"
        )
