"""How many devices PyTorch can number, and therefore how many ranks a program may have."""

from __future__ import annotations

from kernbench.errors import UsageError

MOST_DEVICES = 128
"""PyTorch stores a device index in 8 signed bits: ``cuda:128`` becomes ``cuda:-128``.

Source: c10/core/Device.h, ``using DeviceIndex = int8_t``.
"""


def check_ranks(nprocs: int, asked: str) -> None:
    """Refuse more ranks than PyTorch can number devices.

    Raises:
        UsageError: There are more; its text begins with ``asked``.
    """
    if nprocs > MOST_DEVICES:
        raise UsageError(
            f"{asked} asks for {nprocs} ranks, but PyTorch numbers devices with 8 bits, so a "
            f"program may have at most {MOST_DEVICES} ranks, each with a device of its own; start "
            f"{MOST_DEVICES} or fewer, or write it as a bench for `kernbench run`, which has no "
            "such limit"
        )
