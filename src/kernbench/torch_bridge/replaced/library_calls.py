"""Replacements for parts of PyTorch and Python that assume real processes or devices.

A tensor of a device is printed by operations that run there, and the host waits for what it shows.
PyTorch prints below all dispatch modes, so that no program's mode sees it; here that would hide it
from the observer, too. Source: ``_str`` of PyTorch's ``torch/_tensor_str.py``.
"""

from __future__ import annotations

import gc
import os
from contextlib import ExitStack
from dataclasses import replace
from functools import wraps
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
import torch._functorch.predispatch as predispatch
import torch._tensor_str as tensor_str
import torch.distributed.fsdp._init_utils as fsdp_init
import torch.distributed.fsdp.fully_sharded_data_parallel as fsdp_api
import torch.utils.data._utils.signal_handling as signals
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader

from kernbench.errors import OsExit
from kernbench.op_log import Limit
from kernbench.torch_bridge.base.arguments import checked
from kernbench.torch_bridge.base.modes import Mode
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.costs.by_bytes import timing_by_bytes
from kernbench.torch_bridge.placement.names import DEVICE_TYPE, is_simulated, with_index
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.process import HERE, current, warn_once

_NO_COMPILED_AUTOGRAD = (
    "compiled autograd is left out: the backward pass runs, and is timed, operation by operation, "
    "but for the graphs that torch.compile made of it"
)
_get_fsdp_device = fsdp_init._get_compute_device
_get_fsdp_device_asked = fsdp_init._get_device_from_device_id
_init_handle = fsdp_init._init_device_handle
_to = torch.nn.Module.to
_load_script = torch.jit.load


def install(patches: Patches) -> None:
    """Install the replacements."""
    loaders: set[int] = set()
    for name, instead in (
        ("_set_worker_pids", lambda loader_id, pids: loaders.add(loader_id)),
        ("_remove_worker_pids", loaders.discard),
        ("_set_worker_signal_handlers", _nothing),
        ("_set_SIGCHLD_handler", _nothing),
    ):
        patches.set(signals, name, _in_real_process(getattr(signals, name), instead))
    patches.on_close(_leave_open, loaders)
    # It compares with the CPUs of this computer.
    check = "check_worker_number_rationality"
    patches.set(DataLoader, check, _in_real_process(getattr(DataLoader, check), _nothing))
    patches.set(torch._C._dynamo.compiled_autograd, "set_autograd_compiler", _compile_no_gradients)
    patches.set(os, "fork", unseen(_in_real_process(os.fork, _refuse_fork)))
    patches.set(os, "_exit", unseen(_in_real_process(os._exit, _exit_at_once)))
    patches.set(torch.nn.Module, "to", _move_module)
    patches.set(torch.jit, "load", _load_script_to)
    patches.set(fsdp_init, "_get_compute_device", _fsdp_device)
    patches.set(fsdp_init, "_get_device_from_device_id", _fsdp_device_asked)
    patches.set(fsdp_api, "_init_device_handle", _init_fsdp_handle)
    # The CPU's fused encoder layer is one operation, for which there is no kernel model.
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    patches.on_close(torch.backends.mha.set_fastpath_enabled, before)
    patches.set(tensor_str, "_str", _shown)
    _share_levels(patches)
    patches.set(torch._C, "_cuda_sleep", spin)


def _in_real_process(function: Any, instead: Any) -> Any:
    """Return what does something else in simulated processes: signals know no workers of these."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        is_simulated = HERE.process is not None and not HERE.is_foreign
        return (instead if is_simulated else function)(*args, **kwargs)

    return called


def _nothing(*args: Any) -> None:
    pass


def _leave_open(loaders: set[int]) -> None:
    """Let iterators of loaders whose processes have ended be, as the end of a process does."""
    for item in gc.get_objects() if loaders else ():
        if id(item) in loaders:
            item._shutdown = True


def _move_module(self: Any, *args: Any, **kwargs: Any) -> Any:
    """``Module.to``, also with a device number, which C++ does not know."""
    if args and type(args[0]) is int:
        args = (with_index(args[0]), *args[1:])
    if type(kwargs.get("device")) is int:
        kwargs["device"] = with_index(kwargs["device"])
    return _to(self, *args, **kwargs)


def _load_script_to(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    """``torch.jit.load``, whose C++ knows no simulated devices: what it has loaded is moved."""
    if map_location is None or not is_simulated(map_location):
        return _load_script(file, map_location, *args, **kwargs)
    return _load_script(file, "cpu", *args, **kwargs).to(with_index(map_location))


_FSDP_HANDLE = SimpleNamespace(current_device=lambda: str(with_index(DEVICE_TYPE)))
"""Returns the current device by name, as FSDP would make a C++ device of a number."""


def _named(asked: Any) -> Any:
    return with_index(asked) if type(asked) is int else asked


def _fsdp_device(module: Any, ignored: Any, asked: Any, rank: int, handle: Any) -> Any:
    """Return the device on which one unit of FSDP computes."""
    return _get_fsdp_device(module, ignored, asked, rank, _FSDP_HANDLE)


def _fsdp_device_asked(asked: Any, rank: int, handle: Any) -> Any:
    """Return the device that FSDP's ``device_id`` refers to."""
    return _get_fsdp_device_asked(_named(asked), rank, _FSDP_HANDLE)


def _init_fsdp_handle(state: Any, module: Any, ignored: Any, asked: Any) -> Any:
    """Let FSDP find the functions of the device that ``device_id`` refers to."""
    return _init_handle(state, module, ignored, _named(asked))


def _compile_no_gradients(compiler: Any, dynamic: bool) -> tuple[None, bool]:
    """Disable compiled autograd, for which C++ would trace the backward pass."""
    if compiler is not None:
        warn_once("compiled autograd", _NO_COMPILED_AUTOGRAD)
    return None, False


def _refuse_fork() -> NoReturn:
    """``os.fork``, refused: it would copy all ranks and run one of them."""
    raise UnsupportedTorchError(
        "os.fork in a simulated process: a worker process would be outside of the simulation, "
        "without devices; start ranks with torch.multiprocessing.spawn, or work in threads"
    )


def _exit_at_once(status: int) -> NoReturn:
    """``os._exit``: ends the calling rank only, and runs its ``finally`` blocks."""
    current().ends_at_once = True
    raise OsExit(status)


def _share_levels(patches: Patches) -> None:
    """Let ranks be inside of a level of forward-mode AD in turns: the real process has one."""
    enter, leave = predispatch._enter_dual_level_impl, predispatch._exit_dual_level_impl
    inside: set[Any] = set()

    def enter_level() -> int:
        others = inside - {HERE.process}
        # PyTorch refuses a second one of its own.
        level: int = 0 if others and HERE.process not in inside else enter()
        inside.add(HERE.process)
        return level

    def leave_level(*, level: int) -> None:
        inside.discard(HERE.process)
        if not inside:
            leave(level=level)

    patches.set(predispatch, "_enter_dual_level_impl", enter_level)
    patches.set(predispatch, "_exit_dual_level_impl", leave_level)


def _shown(self: Tensor, *, tensor_contents: Any = None) -> Any:
    """Return what ``Tensor.__repr__`` prints."""
    with torch.no_grad(), _disable_current_modes() as modes, ExitStack() as kept:
        for mode in modes:
            if isinstance(mode, Mode):
                kept.enter_context(mode)
        guard = torch._C._DisableFuncTorch()  # noqa: F841 - it lives until the end
        return tensor_str._str_intern(self, tensor_contents=tensor_contents)


@checked
def spin(cycles: int) -> None:
    """Keep the current stream of the caller's device busy for a number of its clock cycles."""
    process = current()
    if process.capture is not None:
        raise UnsupportedTorchError(
            "torch.cuda._sleep in the capture of a CUDA graph: only operations on tensors are "
            "captured; sleep outside of the capture"
        )
    sip_id = process.state.sip_id
    sip = process.session.run.machine.sip_at(sip_id)
    template = timing_by_bytes("_sleep", sip, 0, 0).template(True)
    more_ps = sip.cycles_ps(cycles)
    limits_ps = {**template.limits_ps, Limit.LATENCY: sip.hbm_latency_ps + more_ps}
    # A single program on one PE: kernels of other streams run concurrently, as with a copy.
    process.host.copy(
        replace(template, duration_ps=template.duration_ps + more_ps, limits_ps=limits_ps), sip_id
    )
