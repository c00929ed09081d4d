"""Ranges that programs name, with NVTX or ``record_function``, in their rank's host time."""

from __future__ import annotations

from typing import Any

import torch.autograd.profiler as autograd_profiler
import torch.cuda.nvtx

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import current


def _now(name: str, *args: Any) -> Any:
    """Call a method of the process's ranges, with the time."""
    process = current()
    return getattr(process.ranges, name)(*args, process.host.now_ps)


def _of_ranges(name: str) -> Any:
    return staticmethod(lambda *args: _now(name, *args))


class _Nvtx:
    """Replaces ``torch._C._nvtx``; ranges on a device begin and end when they do on its host."""

    rangePushA = _of_ranges("push")  # noqa: N815 - PyTorch calls these by NVTX's names
    rangePop = _of_ranges("pop")  # noqa: N815
    rangeStartA = _of_ranges("start")  # noqa: N815
    rangeEnd = _of_ranges("end")  # noqa: N815
    markA = _of_ranges("mark")  # noqa: N815

    @staticmethod
    def deviceRangeStart(name: str, stream: int) -> int:  # noqa: N802
        return int(_Nvtx.rangeStartA(name))

    @staticmethod
    def deviceRangeEnd(handle: Any, stream: int) -> None:  # noqa: N802
        _Nvtx.rangeEnd(handle)


def _enter(self: Any) -> Any:
    self.record = _now("start", self.name)
    return self


def _exit(self: Any, *error: object) -> None:
    _now("end", self.record)


def install(patches: Patches) -> None:
    """Record the ranges that programs name."""
    patches.set(torch.cuda.nvtx, "_nvtx", _Nvtx)
    patches.set_all(autograd_profiler.record_function, __enter__=_enter, __exit__=_exit)
    # No tool would show the operations' own ranges.
    for emit in (autograd_profiler.emit_nvtx, autograd_profiler.emit_itt):
        patches.set(emit, "__enter__", lambda self: self if self.enabled else None)
        patches.set(emit, "__exit__", lambda self, *error: False)
