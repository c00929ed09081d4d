"""``torch.autocast`` on simulated devices, whose tensors C++ has on the CPU.

The operations that are cast are those of the CPU's lists.
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.torch_bridge.device.names import CPU, DEVICE_TYPE
from kernbench.torch_bridge.patches import Patches

_set_enabled = torch.set_autocast_enabled
_set_dtype = torch.set_autocast_dtype
_CPU_DTYPE = torch.get_autocast_dtype(CPU.type)


def _set_enabled_of_both(*args: Any) -> None:
    _set_enabled(*args)
    if args[0] == DEVICE_TYPE:
        _set_enabled(CPU.type, args[1])


def _set_dtype_of_both(device_type: str, dtype: torch.dtype) -> None:
    _set_dtype(device_type, dtype)
    if device_type == DEVICE_TYPE:
        inside = torch.is_autocast_enabled(DEVICE_TYPE)
        _set_dtype(CPU.type, dtype if inside else _CPU_DTYPE)


def install(patches: Patches) -> None:
    """Let what holds for a device hold for the CPU."""
    patches.set_all(
        torch,
        {"set_autocast_enabled": _set_enabled_of_both, "set_autocast_dtype": _set_dtype_of_both},
    )
