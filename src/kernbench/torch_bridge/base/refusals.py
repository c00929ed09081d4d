"""Errors for what a PyTorch program may ask for and a simulated device does not support."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from kernbench.errors import KernbenchError


class UnsupportedTorchError(KernbenchError, NotImplementedError):
    """A part of PyTorch that simulated processes do not support: why, and what to do instead."""


class MixedDevicesError(KernbenchError, RuntimeError):
    """An operation got tensors of several devices, or of the host and of a device."""


class RefusedOperandsError(KernbenchError, RuntimeError):
    """An operation got operands that kernels of a GPU do not take."""


class CaptureError(KernbenchError, RuntimeError):
    """A program asks a CUDA graph for what CUDA refuses, or does what a capture does not permit."""


WITHOUT_SYMMETRIC_MEMORY = (
    "simulated devices do not have this operation of symmetric memory; use others of "
    "torch.ops.symm_mem, torch.distributed's collectives, or a Triton kernel on get_buffer()"
)

_NO_CPU_KERNEL = re.compile(r"Could not run '(\w+)::([\w.]+)' with arguments from the 'CPU'")

_OF_PYTORCH = (
    "PyTorch has it for GPUs only, and simulated devices compute with its CPU kernels; write that "
    "part with other operations, or in Triton"
)
_OF_A_LIBRARY = (
    "this process has registered no kernel for CUDA with torch.library, and kernels in CUDA C++ "
    'cannot be run; register one in Python or Triton: Library(...).impl(name, function, "CUDA")'
)


@contextmanager
def missing_kernels_by_name() -> Iterator[None]:
    """Name the operation for which PyTorch would raise an error that lists all its backends."""
    try:
        yield
    except NotImplementedError as error:
        result = _NO_CPU_KERNEL.match(str(error))
        if result is None:
            raise
        why = _OF_PYTORCH if result[1] == "aten" else _OF_A_LIBRARY
        raise UnsupportedTorchError(f"torch.ops.{result[1]}.{result[2]}: {why}").with_traceback(
            error.__traceback__
        ) from None
