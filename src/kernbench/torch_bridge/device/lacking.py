"""Parts of ``torch.cuda`` that simulated devices lack: each raises an error that names it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, update_wrapper, wraps
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.cuda.memory
import torch.cuda.profiler
import torch.cuda.sparse
import torch.export
import torch.nn.parallel.comm
import torch.utils.dlpack
from torch import Tensor
from torch.utils._pytree import tree_map_only

from kernbench.clock import user_site
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.device.cuda_memory import mem_get_info
from kernbench.torch_bridge.placement.names import DEVICE_TYPE
from kernbench.torch_bridge.placement.residence import residence_of
from kernbench.torch_bridge.processes.process import HERE

_TORCH = f"{Path(torch.__file__).parent}/"
_dlpack = torch.Tensor.__dlpack__
_to_tensor = torch.utils.dlpack.from_dlpack
_POOLS = dict.fromkeys(
    ("MemPool", "use_mem_pool"), "the allocator's model has one pool per stream; leave the pool out"
)
_PARALLEL = (
    "torch.nn.DataParallel needs CUDA's threads and copies; wrap the model in "
    "DistributedDataParallel, with a rank for each device"
)
_REFUSED: dict[Any, dict[str, str]] = {
    torch.cuda.memory: _POOLS,
    torch.cuda: {
        **_POOLS,
        "_get_pynvml_handler": "NVML knows no simulated devices; the report has what was busy",
        "_get_nvml_device_index": "NVML knows no simulated devices; the report has what was busy",
        "list_gpu_processes": "NVML knows no simulated devices; the report has peak memory",
        "_compile_kernel": "CUDA C++ cannot be run; write the kernel in Triton",
    },
    torch.nn.parallel.comm: dict.fromkeys(
        ("broadcast", "broadcast_coalesced", "reduce_add", "scatter", "gather"), _PARALLEL
    ),
    torch.cuda.sparse: dict.fromkeys(
        (name for name in vars(torch.cuda.sparse) if name.endswith("Tensor")),
        'legacy sparse types are not supported; use torch.sparse_coo_tensor(..., device="cuda")',
    ),
    torch.export: {"draft_export": "it computes with real tensors as it traces; use export"},
}

_ADVICE = {
    ("tunableop", "record_untuned"): "products are timed as kernbench's kernels, which are not "
    "tuned; leave it out",
    ("hostMemory", "HostMemory"): "host memory is not modeled; leave it out",
    ("_nccl",): "use the collectives of torch.distributed, with one of its groups",
    ("Allocator",): "the allocator is a model; leave it out, or make a tensor for the memory",
    ("Handle", "Workspace"): "CUDA's libraries are not available; leave it out",
}
"""What to do instead, by a part of the name that PyTorch looks up in CUDA."""
_GUARD = "leave it out, or guard it: the error is an AttributeError"


class UnsupportedCudaError(UnsupportedTorchError, AttributeError):
    """A function that only a CUDA build has; ``hasattr`` says that it does not exist."""


def install(patches: Patches) -> None:
    """Refuse them."""
    for owner, reasons in _REFUSED.items():
        for name, reason in reasons.items():
            refuse = refusing(f"{owner.__name__}.{name}", reason)
            lacked = getattr(owner, name, None)
            if isinstance(lacked, type):
                # Programs name the class of what they might get.
                refuse = type(name, (), {"__new__": refuse, "__module__": owner.__name__})
            elif lacked is not None:
                # PyTorch's compiler identifies some of them by their parts.
                update_wrapper(refuse, lacked)
            patches.set(owner, name, refuse)
    kind = torch.nn.DataParallel
    patches.set_all(kind, __init__=_on_one_device(kind.__init__), scatter=_moving(kind.scatter))
    patches.set_all(
        torch.cuda,
        ipc_collect=lambda: None,
        can_device_access_peer=lambda device, peer_device: device != peer_device,
    )
    for owner in (torch.cuda, torch.cuda.profiler):
        patches.set_all(owner, cudart=_Cudart, check_error=lambda result: None)
    patches.set_all(
        torch._C,
        _cuda_getAllocatorBackend=lambda: "native",
        _cuda_get_sync_debug_mode=lambda: 0,
        _cuda_set_sync_debug_mode=_watch_waits,
    )
    patches.set(torch.Tensor, "__dlpack__", _no_capsule)
    for owner in (torch, torch.utils.dlpack):
        patches.set(owner, "from_dlpack", _from_dlpack)
    # A module's own fallback for missing names.
    patches.set(torch._C, "__getattr__", _no_part)
    patches.set(
        torch.UntypedStorage,
        "_share_cuda_",
        refusing(
            "sharing a device tensor between processes",
            "each rank has its own memory; send it with torch.distributed",
        ),
    )


class _Cudart:
    """The part of CUDA's runtime that PyTorch exposes; profiler calls do nothing."""

    @staticmethod
    def cudaProfilerStart() -> int:  # noqa: N802 - CUDA's names
        return 0

    @staticmethod
    def cudaProfilerStop() -> int:  # noqa: N802
        return 0

    @staticmethod
    def cudaMemGetInfo(device: int) -> tuple[int, int]:  # noqa: N802
        return mem_get_info(device)

    def __getattr__(self, name: str) -> NoReturn:
        raise UnsupportedCudaError(
            f"torch.cuda.cudart().{name}: simulated devices have no runtime of CUDA; use PyTorch's "
            "own functions, such as Tensor.pin_memory() and torch.cuda.synchronize()"
        )


def refusing(name: str, reason: str) -> Any:
    """Return what raises an error that names a function, and what to do instead."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedTorchError(f"{_called() if 'cuda._' in name else name}: {reason}")

    return refuse


def _moving(scatter: Callable[..., Any]) -> Any:
    """Return ``DataParallel.scatter``, which moves what a single device computes with."""

    @wraps(scatter)
    def move(self: Any, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        if len(device_ids) > 1:
            return scatter(self, inputs, kwargs, device_ids)
        to_device = partial(Tensor.to, device=torch.device(DEVICE_TYPE, device_ids[0]))
        return tree_map_only(Tensor, to_device, ((inputs,), (kwargs,)))

    return move


def _on_one_device(begin: Callable[..., None]) -> Any:
    """Return ``DataParallel``'s initializer, which refuses several devices where it is called."""

    @wraps(begin)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        if len(self.device_ids) > 1:
            raise UnsupportedTorchError(
                f"torch.nn.DataParallel on {len(self.device_ids)} devices, at {user_site()}: "
                f"{_PARALLEL}"
            )

    return init


def _no_part(name: str) -> NoReturn:
    """Raise an error that names the part of ``torch.cuda`` that needs a CUDA build's function."""
    if HERE.process is None or not name.startswith(("_cuda", "_nccl")):
        raise AttributeError(f"module 'torch._C' has no attribute {name!r}")
    advice = next(
        (text for parts, text in _ADVICE.items() if any(part in name for part in parts)), _GUARD
    )
    raise UnsupportedCudaError(
        f"{_called()}: simulated devices do not have it (PyTorch looks up {name} in CUDA); {advice}"
    )


def _watch_waits(mode: int) -> None:
    """``torch.cuda.set_sync_debug_mode``, which supports only the default."""
    if mode:
        raise UnsupportedTorchError(
            "torch.cuda.set_sync_debug_mode: calls that make the host wait are not warned of; the "
            "trace (--trace) and torch.profiler show each wait of the host"
        )


def _called() -> str:
    """Return the name of the PyTorch function that the program has called."""
    frame: FrameType | None = sys._getframe(1)
    text = "torch.cuda"
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_TORCH):
            text = f"{frame.f_globals.get('__name__', 'torch')}.{frame.f_code.co_qualname}"
        elif file != __file__:
            break
        frame = frame.f_back
    return text


def _no_capsule(self: Tensor, **kwargs: Any) -> Any:
    """``Tensor.__dlpack__``, refused: C++'s capsule would say that it is on the CPU."""
    if residence_of(self) is None:
        return _dlpack(self, **kwargs)
    raise UnsupportedTorchError(
        "Tensor.__dlpack__ of a tensor on a simulated device: another library would find no memory "
        "of a GPU there; hand it tensor.cpu()"
    )


def _from_dlpack(ext_tensor: Any, **kwargs: Any) -> Tensor:
    """``torch.from_dlpack``; of a tensor on a simulated device, a view."""
    if isinstance(ext_tensor, Tensor) and residence_of(ext_tensor) is not None:
        return ext_tensor.detach()
    dlpack: Tensor = _to_tensor(ext_tensor, **kwargs)
    return dlpack
