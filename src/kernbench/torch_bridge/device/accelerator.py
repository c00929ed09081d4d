"""What ``torch.accelerator`` asks C++, answered for the simulated devices.

The public functions are PyTorch's own, and accept what they accept on CUDA. Code that is written
for CUDA builds, as launchers that generate it and what Inductor writes, asks C++ itself.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import torch

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device import streams
from kernbench.torch_bridge.device.module import device_count, set_device
from kernbench.torch_bridge.placement.names import DEVICE_TYPE, current_index, with_index
from kernbench.torch_bridge.processes.call_counts import unseen

_NO_DEVICE = -1
_NEW = 312
"""Where ``tp_new`` lies in a type (``PyTypeObject``, since Python 3.8)."""
_DTYPES = frozenset(
    name
    for name in vars(torch).values()
    if isinstance(name, torch.dtype) and "q" not in str(name).partition(".")[2]
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


def _exchange_if_any(index: int) -> int:
    # PyTorch's compiler has rules by function, so that no two names may have one.
    return exchange(index)


def _parts(stream: streams.Stream) -> tuple[int, int, int]:
    return stream.stream_id, stream.device_index, stream.device_type


def _set_stream(stream_id: int, device_index: int, device_type: int = 1) -> None:
    streams.set_stream(streams.external_stream(stream_id, device_index))


def empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialized tensor on the current device, as generated code asks for it."""
    return torch.empty_strided(size, stride, dtype=dtype, device=with_index(DEVICE_TYPE))


def _install_raw_calls(patches: Patches) -> None:
    patches.set_all(
        torch._C,
        _cuda_getCurrentRawStream=lambda index: streams.current_stream(index).cuda_stream,
        _cuda_getCurrentStream=lambda index: _parts(streams.current_stream(index)),
        _cuda_getDefaultStream=lambda index: _parts(streams.default_stream(index)),
        _cuda_setStream=_set_stream,
        _cuda_synchronize=lambda: streams.synchronize(),
        _cuda_setDevice=lambda index: _set_index(index),
        _cuda_exchangeDevice=lambda index: exchange(index),
        _cuda_maybeExchangeDevice=lambda index: _exchange_if_any(index),
        _cuda_init=lambda: None,
        _cuda_isInBadFork=lambda: False,
        _cuda_hasPrimaryContext=lambda index: True,
        _cuda_canDeviceAccessPeer=lambda index, peer: index != peer,
        _cuda_clearCublasWorkspaces=lambda: None,
        _cuda_getArchFlags=lambda: " ".join(torch.cuda.get_arch_list()),
    )
    patches.set_all(torch.cuda, _exchange_device=exchange, _maybe_exchange_device=_exchange_if_any)
    patches.set(torch._C._dynamo.guards, "_empty_strided_cuda", empty_strided)


class _Made:
    def __new__(cls) -> Any: ...


def _slot(kind: type) -> ctypes.c_void_p:
    return ctypes.c_void_p.from_address(id(kind) + _NEW)


def _number_devices(patches: Patches) -> None:
    """Let ``torch.device(0)`` be a device, for which C++ asks what PyTorch was built for.

    The type's slot gets what Python has for classes that define ``__new__``.
    """
    device, before = torch.device, _slot(torch.device).value
    assert before is not None
    in_c = ctypes.PYFUNCTYPE(*[ctypes.py_object] * 4)(before)

    def make(kind: Any, *args: Any, **kwargs: Any) -> torch.device:
        if len(args) == 1 and not kwargs and hasattr(args[0], "__index__"):
            args = (DEVICE_TYPE, args[0].__index__())
        result: torch.device = in_c(kind, args, kwargs)
        return result

    space: dict[str, Any] = gc.get_referents(vars(device))[0]
    own = space["__new__"]

    def put(function: Any, pointer: int | None) -> None:
        space["__new__"] = function
        _slot(device).value = pointer
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(device))

    patches.on_close(put, own, before)
    put(staticmethod(unseen(make)), _slot(_Made).value)


def install(patches: Patches) -> None:
    """Let ``torch.accelerator``, and what is below ``torch.cuda``, answer for the machine."""
    _install_raw_calls(patches)
    _number_devices(patches)
    patches.set_all(
        torch._C,
        _accelerator_getAccelerator=lambda: torch.device(DEVICE_TYPE),
        _accelerator_getDeviceIndex=lambda: current_index(),
        _accelerator_setDeviceIndex=_set_index,
        _accelerator_exchangeDevice=exchange,
        _accelerator_maybeExchangeDevice=exchange,
        _accelerator_getStream=streams.current_stream,
        _accelerator_setStream=streams.set_stream,
        _accelerator_synchronizeDevice=streams.synchronize,
        _accelerator_getDeviceCapability=lambda index: {"supported_dtypes": set(_DTYPES)},
    )
    patches.set_all(
        torch.accelerator,
        is_available=lambda: True,
        current_accelerator=lambda check_available=False: torch.device(DEVICE_TYPE),
        device_count=device_count,
    )
