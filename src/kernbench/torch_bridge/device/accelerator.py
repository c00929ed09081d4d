"""What ``torch.accelerator`` asks C++, answered for the simulated devices.

The public functions are PyTorch's own, and accept what they accept on CUDA.
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device import streams
from kernbench.torch_bridge.device.module import device_count, set_device
from kernbench.torch_bridge.placement.names import DEVICE_TYPE, current_index

_NO_DEVICE = -1
_DTYPES = frozenset(
    each
    for each in vars(torch).values()
    if isinstance(each, torch.dtype) and "q" not in str(each).partition(".")[2]
)
"""All dtypes but the quantized ones."""


def _set_index(index: int) -> None:
    """Set the calling rank's device; a negative index changes nothing."""
    if index >= 0:
        set_device(index)


def exchange(index: int) -> int:
    """Set the calling rank's device and return the previous one; -1 for a negative index."""
    before = current_index() if index >= 0 else _NO_DEVICE
    _set_index(index)
    return before


def install(patches: Patches) -> None:
    """Let ``torch.accelerator`` answer for the simulated machine."""
    patches.set_all(
        torch._C,
        {
            "_accelerator_getAccelerator": lambda: torch.device(DEVICE_TYPE),
            "_accelerator_getDeviceIndex": lambda: current_index(),
            "_accelerator_setDeviceIndex": _set_index,
            "_accelerator_exchangeDevice": exchange,
            "_accelerator_maybeExchangeDevice": exchange,
            "_accelerator_getStream": streams.current_stream,
            "_accelerator_setStream": streams.set_stream,
            "_accelerator_synchronizeDevice": streams.synchronize,
            "_accelerator_getDeviceCapability": lambda index: {"supported_dtypes": set(_DTYPES)},
        },
    )
    patches.set_all(
        torch.accelerator,
        {
            "is_available": lambda: True,
            "current_accelerator": _current,
            "device_count": device_count,
        },
    )


def _current(check_available: bool = False) -> Any:
    """``torch.accelerator.current_accelerator``, whatever C++ was built for."""
    return torch.device(DEVICE_TYPE)
