"""What the Python code that Inductor writes calls in C++ of a CUDA build."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.compiler.numbering import Numbering
from kernbench.torch_bridge.device.accelerator import empty_strided, exchange
from kernbench.torch_bridge.device.pinned import pinned
from kernbench.torch_bridge.placement.names import with_index
from kernbench.torch_bridge.placement.residence import residence_of, settle, storage_of
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.compiling import COMPILING
from kernbench.torch_bridge.processes.of_all import library_of_all
from kernbench.torch_bridge.processes.process import HERE, current

_as_strided: Any = torch._C.TensorBase.as_strided_
_INPUT = "input"
"""What Inductor calls a graph's inputs, whose layout is the program's, among operations."""


class DeviceGuard:
    """``torch.cuda._DeviceGuard``, in the compiler's files of a device by its number there."""

    def __init__(self, numbering: Numbering, index: int) -> None:
        is_in_file = numbering.is_of_file(sys._getframe(1).f_globals)
        self.idx = numbering.exchanged(index) if is_in_file else index
        self.prev_idx = -1

    @unseen
    def __enter__(self) -> None:
        self.prev_idx = exchange(self.idx)

    @unseen
    def __exit__(self, *error: object) -> None:
        exchange(self.prev_idx)


def install_early(patches: Patches) -> None:
    """Install what the compiler's modules keep when they are imported."""
    patches.set(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)
    patches.set(torch._C, "_cuda_isCurrentStreamCapturing", _is_capturing)
    patches.set(torch._C, "_cuda_cudaCachingAllocator_is_enabled", lambda: True)
    patches.set(torch.cuda, "_exchange_device", unseen(exchange))
    patches.set(torch.cuda, "_maybe_exchange_device", unseen(lambda index: exchange(index)))
    patches.set(torch.cuda, "_is_compiled", lambda: True)


def install(patches: Patches, numbering: Numbering) -> None:
    """Install the rest: how tensors are made, and which devices are meant."""
    from torch._C._dynamo import guards as c_guards
    from torch._inductor.fx_passes import joint_graph, pad_mm

    patches.set(torch.cuda, "_DeviceGuard", functools.partial(DeviceGuard, numbering))
    patches.set(c_guards, "_empty_strided_cuda", unseen(empty_strided))
    if hasattr(c_guards, "_empty_strided_cpu_pinned"):
        patches.set(c_guards, "_empty_strided_cpu_pinned", unseen(_empty_strided_pinned))
    patches.set(c_guards, "assert_size_stride", _laying_out(c_guards.assert_size_stride))
    # What PyTorch makes for real on "cuda" while it compiles: constants, examples to be timed.
    library = library_of_all("aten")
    patches.on_close(library._destroy)
    library.impl("empty.memory_format", _empty, "CUDA")
    library.impl("empty_strided", _empty_strided, "CUDA")
    patches.set(pad_mm, "no_dispatch", contextlib.nullcontext)
    patches.wrap(joint_graph.UniformValueConstantFolder, "_deduce_value", _unless_pinned)


def _laying_out(check: Callable[..., None]) -> Callable[..., None]:
    """Return the check of how a result lies, which lays a device's result out as a GPU would.

    The compiler expects what a GPU's libraries make; results here are made by the host's.
    """

    @functools.wraps(check)
    def assert_size_stride(tensor: Any, size: Any, stride: Any, *of: Any) -> None:
        try:
            check(tensor, size, stride, *of)
        except AssertionError:
            if _INPUT in of or not of or not _fills_memory(tensor, size, stride):
                raise
            with no_dispatch():
                numbers = tensor.clone()
                _as_strided(tensor, size, stride).copy_(numbers)

    return assert_size_stride


def _fills_memory(tensor: Any, size: Any, stride: Any) -> bool:
    """Return whether a tensor has all of its memory, and would have it laid out otherwise."""
    if residence_of(tensor) is None or tuple(tensor.shape) != tuple(size):
        return False
    span = 1 + sum((item - 1) * step for item, step in zip(size, stride, strict=True))
    held = storage_of(tensor).nbytes() // tensor.element_size()
    return bool(span == tensor.numel() == held)


def _is_capturing() -> bool:
    return HERE.process is not None and HERE.process.capture is not None


def _unless_pinned(original: Callable[..., Any], self: Any, node: Any) -> Any:
    """Compute a constant while compiling, but none in pinned memory: C++ has none."""
    return self.unknown_value if node.kwargs.get("pin_memory") else original(self, node)


def _empty_strided_pinned(size: Any, stride: Any, dtype: Any) -> Any:
    return pinned(torch.empty_strided(size, stride, dtype=dtype))


def _place() -> torch.device:
    # What the compiler makes to look at has numbers, without data too.
    return torch.device("cpu") if COMPILING.depth else current().session.place


def _empty(
    size: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Any:
    tensor = torch.ops.aten.empty.memory_format(
        size, dtype=dtype, device=_place(), memory_format=memory_format
    )
    settle(tensor, with_index(device), "aten.empty")
    return tensor


def _empty_strided(
    size: Any,
    stride: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Any:
    tensor = torch.ops.aten.empty_strided.default(size, stride, dtype=dtype, device=_place())
    settle(tensor, with_index(device), "aten.empty")
    return tensor
