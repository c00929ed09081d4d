"""Libraries of a CUDA driver that programs open by ctypes: NVML, and the runtime.

Functions take what C's take: pointers of ``ctypes.byref``, which are written, and return a status.
Handles of NVML are the numbers of the devices that a program sees, from 1 on.
Source: ``nvml.h`` and ``driver_types.h`` of CUDA 13.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.processes.process import HERE

_DRIVER = b"580.00"
_NAME = re.compile(r"lib(nvidia-ml|cudart)\.so[.\d]*$")
_NVML_NO_ARGUMENT, _NVML_NOT_SUPPORTED = 2, 3


def install(patches: Patches) -> None:
    """Let programs open those of the simulated devices, whatever is installed."""
    load = ctypes.CDLL

    class CDLL(load):  # type: ignore[valid-type, misc]
        """``ctypes.CDLL``."""

        def __new__(cls, name: Any = None, *args: Any, **kwargs: Any) -> Any:
            result = _NAME.search(str(name)) if HERE.process is not None else None
            if result is not None:
                return _LIBRARIES[result[1]]()
            return super().__new__(cls)

    patches.set(ctypes, "CDLL", CDLL)


class _LibraryFunction:
    """A function of a library; ``ctypes`` lets programs set its types. None stands for success."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.restype: Any = ctypes.c_int
        self.argtypes: Any = None

    def __call__(self, *args: Any) -> Any:
        return self._call(*args) or 0


def _to(pointer: Any) -> Any:
    """Return what ``byref`` or ``pointer`` refers to."""
    return pointer._obj if hasattr(pointer, "_obj") else pointer.contents


def _number(value: Any) -> int:
    return int(getattr(value, "value", value) or 0)


class _DriverLibrary:
    """A library whose functions have a prefix; ``lacking`` is called for unknown ones."""

    def __init__(
        self, prefix: str, known: dict[str, Callable[..., Any]], lacking: Callable[[str], Any]
    ) -> None:
        self._prefix, self._known, self._lacking = prefix, known, lacking

    def __getattr__(self, name: str) -> _LibraryFunction:
        plain = re.sub(r"_v\d$", "", name)
        if not plain.startswith(self._prefix):
            raise AttributeError(name)
        library_function = _LibraryFunction(self._known.get(plain) or partial(self._lacking, name))
        setattr(self, name, library_function)
        return library_function


def _count(pointer: Any) -> None:
    _to(pointer).value = torch.cuda.device_count()


def _handle(index: Any, pointer: Any) -> int:
    number = _number(index)
    if number >= torch.cuda.device_count():
        return _NVML_NO_ARGUMENT
    _point(_to(pointer), number + 1)
    return 0


def _point(target: Any, value: int) -> None:
    ctypes.c_size_t.from_address(ctypes.addressof(target)).value = value


def _index(handle: Any) -> int:
    if isinstance(handle, ctypes._Pointer):
        return int(ctypes.cast(handle, ctypes.c_void_p).value or 1) - 1
    return _number(handle) - 1


def _by_uuid(uuid: Any, pointer: Any) -> int:
    wanted = getattr(uuid, "value", uuid)
    for index in range(torch.cuda.device_count()):
        if _uuid_of(index) == wanted:
            _point(_to(pointer), index + 1)
            return 0
    return _NVML_NO_ARGUMENT


def _uuid_of(index: int) -> bytes:
    return f"GPU-{torch.cuda.get_device_properties(index).uuid}".encode()


def _text(of: Callable[[int], bytes], handle: Any, buffer: Any, size: Any) -> None:
    buffer.value = of(_index(handle))[: _number(size) - 1]


def _capability(handle: Any, major: Any, minor: Any) -> None:
    _to(major).value, _to(minor).value = torch.cuda.get_device_capability(_index(handle))


def _memory(handle: Any, pointer: Any) -> None:
    free, total = torch.cuda.mem_get_info(_index(handle))
    result = _to(pointer)
    result.total, result.free, result.used = total, free, total - free


def _index_of(handle: Any, pointer: Any) -> None:
    _to(pointer).value = _index(handle)


def _p2p(first: Any, second: Any, kind: Any, pointer: Any) -> None:
    here, there = _index(first), _index(second)
    is_there = here == there or torch.cuda.can_device_access_peer(here, there)
    # NVML_P2P_STATUS_OK, or NVML_P2P_STATUS_NOT_SUPPORTED.
    _to(pointer).value = 0 if is_there else 5


def _pci(handle: Any, pointer: Any) -> None:
    number = _index(handle)
    result = _to(pointer)
    result.bus, result.busId = number + 1, f"00000000:{number + 1:02X}:00.0".encode()


def _driver(buffer: Any, size: Any) -> None:
    buffer.value = _DRIVER


def _fine(*args: Any) -> None:
    pass


_NVML: dict[str, Callable[..., Any]] = {
    "nvmlInit": _fine,
    "nvmlInitWithFlags": _fine,
    "nvmlShutdown": _fine,
    "nvmlDeviceGetCount": _count,
    "nvmlDeviceGetHandleByIndex": _handle,
    "nvmlDeviceGetHandleByUUID": _by_uuid,
    "nvmlDeviceGetIndex": _index_of,
    "nvmlDeviceGetName": partial(_text, lambda index: torch.cuda.get_device_name(index).encode()),
    "nvmlDeviceGetUUID": partial(_text, _uuid_of),
    "nvmlDeviceGetCudaComputeCapability": _capability,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetP2PStatus": _p2p,
    "nvmlDeviceGetPciInfo": _pci,
    "nvmlSystemGetDriverVersion": _driver,
}


def _refuse(name: str, *args: Any) -> NoReturn:
    raise UnsupportedTorchError(
        f"{name} of libcudart by ctypes: simulated devices have {', '.join(_RUNTIME)} there; use "
        "torch.cuda for the rest"
    )


def _get_device(pointer: Any) -> None:
    _to(pointer).value = torch.cuda.current_device()


def _mem_info(free: Any, total: Any) -> None:
    _to(free).value, _to(total).value = torch.cuda.mem_get_info()


_RUNTIME: dict[str, Callable[..., Any]] = {
    "cudaSetDevice": lambda device: torch.cuda.set_device(_number(device)),
    "cudaGetDevice": _get_device,
    "cudaGetDeviceCount": _count,
    "cudaDeviceSynchronize": lambda: torch.cuda.synchronize(),
    "cudaMemGetInfo": _mem_info,
    "cudaGetLastError": _fine,
    "cudaProfilerStart": _fine,
    "cudaProfilerStop": _fine,
    "cudaHostRegister": _fine,
    "cudaHostUnregister": _fine,
    "cudaGetErrorString": lambda error: b"no error" if not _number(error) else b"not supported",
}
_LIBRARIES: dict[str, Callable[[], _DriverLibrary]] = {
    # What NVML has, and this has not, is not supported by it.
    "nvidia-ml": partial(_DriverLibrary, "nvml", _NVML, lambda name, *args: _NVML_NOT_SUPPORTED),
    "cudart": partial(_DriverLibrary, "cuda", _RUNTIME, _refuse),
}
