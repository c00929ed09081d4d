"""What the compiler asks about devices, and keeps: it is of one run."""

from __future__ import annotations

from typing import Any

import torch

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device.module import CudaDeviceProperties
from kernbench.torch_bridge.processes.process import current


def install(patches: Patches) -> None:
    """Let the compiler ask the run's devices.

    It may have been imported before the run, by a library, and so has PyTorch's own functions; and
    what it knows of devices may be of an earlier run's machine.
    """
    from torch._dynamo import device_interface
    from torch._dynamo import utils as dynamo_utils
    from torch._dynamo.variables import torch as folded
    from torch._inductor import comm_analysis, utils
    from torch._inductor.runtime.hints import DeviceProperties
    from torch.distributed import _symmetric_memory as symmetric

    kind = device_interface.CudaInterface
    for name, value in list(vars(kind).items()):
        asked = _asked(name)
        if isinstance(value, staticmethod) and asked is not None:
            patches.set(kind, name, staticmethod(asked))
    device_interface.caching_worker_current_devices.clear()
    device_interface.caching_worker_device_properties.clear()
    _forget(DeviceProperties.create)
    for module in (utils, comm_analysis):
        for item in list(vars(module).values()):
            _forget(item)
    patches.set(symmetric, "is_symm_mem_enabled_for_group", _is_shared)
    kinds = dynamo_utils.common_constant_types
    if CudaDeviceProperties not in kinds:
        kinds.add(CudaDeviceProperties)
        patches.on_close(kinds.discard, CudaDeviceProperties)
    for table in (folded.constant_fold_functions, folded.constant_fold_functions_need_guards):
        known = set(map(id, table))
        for item in patches.replaced:
            if id(item.before) in known and id(item.value) not in known:
                known.add(id(item.value))
                table[item.value] = None
                patches.on_close(table.pop, item.value)


def _is_shared(group_name: str) -> bool:
    """Answer whether a group's devices map each other's memory, where a pass would use that."""
    current().session.lacks_shared_memory = True
    return False


def _asked(name: str) -> Any:
    """Return what shows now of what the interface has under a name; None for its own functions."""
    if name == "get_raw_stream":
        return torch._C._cuda_getCurrentRawStream
    if name in ("exchange_device", "maybe_exchange_device"):
        return getattr(torch.cuda, f"_{name}")
    return getattr(torch.cuda, name, None)


def _forget(function: Any) -> None:
    clear = getattr(function, "cache_clear", None)
    if clear is not None:
        clear()
