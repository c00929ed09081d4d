"""Ranges that programs name, with NVTX or ``record_function``, in their rank's host time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.autograd.profiler as autograd_profiler
import torch.cuda.nvtx

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import current

if TYPE_CHECKING:
    from kernbench.torch_bridge.processes.process import Process


def _here() -> tuple[Process, int]:
    process = current()
    return process, process.host.now_ps


class _Nvtx:
    """Replaces ``torch._C._nvtx``; ranges on a device begin and end when they do on its host."""

    @staticmethod
    def rangePushA(name: str) -> int:  # noqa: N802 - PyTorch calls these by NVTX's names
        process, now_ps = _here()
        return process.ranges.push(name, now_ps)

    @staticmethod
    def rangePop() -> int:  # noqa: N802
        process, now_ps = _here()
        return process.ranges.pop(now_ps)

    @staticmethod
    def rangeStartA(name: str) -> int:  # noqa: N802
        process, now_ps = _here()
        return process.ranges.start(name, now_ps)

    @staticmethod
    def rangeEnd(handle: int) -> None:  # noqa: N802
        process, now_ps = _here()
        process.ranges.end(handle, now_ps)

    @staticmethod
    def markA(name: str) -> None:  # noqa: N802
        process, now_ps = _here()
        process.ranges.mark(name, now_ps)

    @staticmethod
    def deviceRangeStart(name: str, stream: int) -> int:  # noqa: N802
        return _Nvtx.rangeStartA(name)

    @staticmethod
    def deviceRangeEnd(handle: Any, stream: int) -> None:  # noqa: N802
        _Nvtx.rangeEnd(handle)


def _enter(self: Any) -> Any:
    process, now_ps = _here()
    self.record = process.ranges.start(self.name, now_ps)
    return self


def _exit(self: Any, *error: object) -> None:
    process, now_ps = _here()
    process.ranges.end(self.record, now_ps)


def _enter_emitting(self: Any) -> Any:
    # No tool would show the operations' own ranges.
    return self if self.enabled else None


def _exit_emitting(self: Any, *error: object) -> bool:
    return False


def install(patches: Patches) -> None:
    """Record the ranges that programs name."""
    patches.set(torch.cuda.nvtx, "_nvtx", _Nvtx)
    patches.set_all(autograd_profiler.record_function, {"__enter__": _enter, "__exit__": _exit})
    for emit in (autograd_profiler.emit_nvtx, autograd_profiler.emit_itt):
        patches.set_all(emit, {"__enter__": _enter_emitting, "__exit__": _exit_emitting})
