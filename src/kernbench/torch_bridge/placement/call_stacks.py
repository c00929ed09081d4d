"""What a stack of Python calls says about an allocation: its line, its module, its pass."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import _engine_run_backward
from torch.optim import Optimizer

from kernbench.clock import is_of_program
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.memory.allocator import CallFrame

_CALL = torch.nn.Module._call_impl.__code__
_ENGINE = _engine_run_backward.__code__
_OPTIMIZERS = Optimizer.profile_hook_step.__code__.co_filename
_STEP = "wrapper"
"""The function around the ``step`` of every optimizer."""
_OURS, _PROGRAM, _MODULE, _OPTIMIZER, _BACKWARD, _CACHE, _SHARDING = 0, 1, 2, 4, 8, 16, 32
_CACHES = re.compile(r"kv_?cache|cache_utils\.py:|\w+Cache\.\w+", re.IGNORECASE)
"""Files and methods in which keys and values are cached, by the names that libraries have."""
_PACKAGE = __file__.partition("/torch_bridge/")[0] + "/"
_STARTS = f"{_PACKAGE}torch_bridge/front/"
_SHARDS = "/distributed/fsdp/"


class CallStack(NamedTuple):
    """What is under way when memory is allocated or freed."""

    file: str
    line: int
    """The innermost line of the program; 0 without one."""
    inner: FrameType | None
    """The frame of the innermost call of a module (in a backward pass: of one that is computed
    again)."""
    outer: FrameType | None
    """The frame of the outermost one."""
    step: FrameType | None
    """The frame of an optimizer's step."""
    marks: int
    """What names of functions say, for :meth:`is_cache` and :meth:`is_sharding`."""

    @property
    def is_cache(self) -> bool:
        """Whether it looks as if keys and values were put into a cache."""
        return bool(self.marks & _CACHE)

    @property
    def is_sharding(self) -> bool:
        """Whether FSDP gathers or scatters."""
        return bool(self.marks & _SHARDING)


class CallStacks:
    """Looks at the stacks of one process. What it knows of code ends with it."""

    def __init__(self) -> None:
        self._kinds: dict[int, int] = {}
        """The kind of code by its identity: its own hash is slow."""
        self._codes: list[CodeType] = []
        """Keeps these identities."""

    def look(self, frame: FrameType | None) -> CallStack:
        """Return what the calls from ``frame`` on say."""
        kinds = self._kinds
        file, line, marks = "", 0, 0
        inner = outer = step = None
        is_backward = False
        while frame is not None:
            code = frame.f_code
            kind = kinds.get(id(code))
            if kind is None:
                kind = kinds[id(code)] = _kind_of(code)
                self._codes.append(code)
            if kind:
                if kind & _MODULE:
                    outer = frame
                    if inner is None and not is_backward:
                        inner = frame
                elif kind & _PROGRAM and not line:
                    file, line = code.co_filename, frame.f_lineno
                elif kind & _OPTIMIZER:
                    step = frame
                elif kind & _BACKWARD:
                    is_backward = True
                marks |= kind
            frame = frame.f_back
        return CallStack(file, line, inner, outer, step, marks)


def _kind_of(code: CodeType) -> int:
    if code is _CALL:
        return _MODULE
    if code is _ENGINE:
        return _BACKWARD
    file = code.co_filename
    if file == _OPTIMIZERS and code.co_name == _STEP:
        return _OPTIMIZER
    kind = _PROGRAM if is_of_program(file) else _OURS
    if _CACHES.search(f"{file.rpartition('/')[2]}:{code.co_qualname}"):
        kind |= _CACHE
    if _SHARDS in file:
        kind |= _SHARDING
    return kind


def is_ours(file: str) -> bool:
    """Return whether a file is one of kernbench."""
    return file.startswith(_PACKAGE)


def frames_of(frame: FrameType | None) -> Iterator[CallFrame]:
    """Yield the calls from ``frame`` on, innermost first, without those of kernbench."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_STARTS):
            # What comes before the program.
            return
        if not is_ours(code.co_filename):
            yield code.co_filename, frame.f_lineno, code.co_qualname
        frame = frame.f_back


_show: Any = warnings._showwarnmsg  # type: ignore[attr-defined]


def _show_at_call(message: Any) -> None:
    """Show a warning: C++ says the innermost line of Python as that from which it was called."""
    if is_ours(message.filename):
        for message.filename, message.lineno, _ in frames_of(sys._getframe(1)):
            if message.filename != warnings.__file__:
                break
    _show(message)


def install(patches: Patches) -> None:
    """Let warnings name lines of the program, or of a library that it calls."""
    patches.set(warnings, "_showwarnmsg", _show_at_call)
