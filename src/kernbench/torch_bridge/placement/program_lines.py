"""Which lines of a PyTorch program launch and keep hosts busy; in a backward pass, whose nodes."""

from __future__ import annotations

from bisect import bisect_right
from threading import get_ident
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.autograd.graph import _engine_run_backward

from kernbench.clock import is_of_program, owner_of
from kernbench.runtime_api import LineRecorder, Run
from kernbench.torch_bridge.base.modes import NO_BACKWARD, graph_task
from kernbench.torch_bridge.placement.roles import Roles
from kernbench.torch_bridge.processes.python_calls import FRAMES_OF_FUNCTION, IN_THREAD

_is_grad_enabled = torch.is_grad_enabled
_node: Any = torch._C._current_autograd_node
_next_sequence: Any = torch.autograd._get_sequence_nr
_ENGINE = _engine_run_backward.__code__
_NEVER_MADE = 2**64 - 1
"""In place of the number of a node that no operation has made, as of those that add gradients up"""
_NOWHERE = 0
_LIBRARY, _PROGRAM, _IS_ENGINE, _IS_MODULE, _IS_SHARDS = range(5)
_SHARDS = "FSDPParamGroup."
"""The class of FSDP2's whose methods gather a module's parameters and scatter their gradients."""
_CALL = torch.nn.Module._call_impl.__code__
_MOST_MARKS = 1 << 18
"""Marks of forward passes that are kept for backward passes, in each thread."""


class Marks:
    """What a thread's operations were marked with, by the numbers of their nodes, in order."""

    __slots__ = ("marks", "sequences")

    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.marks: list[Any] = []

    def keep(self, mark: Any) -> None:
        """Mark an operation; its node, if it has one, has just been made."""
        sequence = _next_sequence() - 1
        sequences = self.sequences
        # One without a node comes behind the latest node, which is another operation's.
        if not sequences or sequences[-1] < sequence:
            sequences.append(sequence)
            self.marks.append(mark)
            if len(sequences) > _MOST_MARKS:
                del sequences[: _MOST_MARKS // 2], self.marks[: _MOST_MARKS // 2]

    def of(self, node: Any) -> Any:
        """Return the mark of the operation that has made a node; None: not known."""
        sequence = node._sequence_nr()
        if sequence == _NEVER_MADE:
            return None
        # A view's, which launches nothing, has none of its own.
        position = bisect_right(self.sequences, sequence) - 1
        return self.marks[position] if position >= 0 else None


class TorchLines:
    """Finds the program's line for a recorder of lines, in a run of PyTorch programs.

    What a backward pass does is of the line whose operation it differentiates, unless code of the
    program runs inside of it: a function with a backward of its own, or what is computed again.
    The module is the innermost one that is called; of what FSDP gathers and scatters, whenever it
    does, that whose parameters these are, and the line is that of its latest forward pass.
    """

    def __init__(self, lines: LineRecorder, run: Run) -> None:
        self._lines = lines
        self._kinds: dict[int, tuple[CodeType, int]] = {}
        """What code is, by its identity, which the entry keeps."""
        self._marks: dict[int, Marks] = {}
        self._of_shards: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._roles = Roles()
        lines.find = self.find
        self._span = lines.span
        run.recorder.span = self.span

    def span(self, values: tuple[Any, ...]) -> None:
        """Log a span of host time with its line, without calls of the program's own."""
        calls = IN_THREAD.calls
        if calls is None or not calls.is_on:
            self._span(values)
            return
        calls.pause(FRAMES_OF_FUNCTION)
        try:
            self._span(values)
        finally:
            calls.resume()

    def find(self, frame: FrameType | None) -> int:
        """Return the number of the line of the program that runs, from a frame on."""
        kinds = self._kinds
        is_backward = graph_task() != NO_BACKWARD
        module = shards = None
        while frame is not None:
            code = frame.f_code
            known = kinds.get(id(code))
            if known is None:
                known = kinds[id(code)] = code, _kind_of(code)
            kind = known[1]
            if kind == _IS_MODULE and module is None:
                module = frame
            if kind == _PROGRAM:
                lines = self._lines
                layers = self._layers(module or _module_around(frame), shards)
                number = lines.number_of(lines.places.at(frame, layers))
                if shards is not None:
                    self._of_shards[shards] = number
                if not is_backward or _is_grad_enabled():
                    self._marks_here().keep(number)
                return number
            if kind == _IS_SHARDS and shards is None:
                shards = owner_of(frame)
            if kind == _IS_ENGINE and is_backward:
                number = _NOWHERE if shards is None else self._of_shards.get(shards, _NOWHERE)
                number = number or self._line_of_node()
                if number:
                    return number
            frame = frame.f_back
        return _NOWHERE

    def _layers(self, call: FrameType | None, shards: Any) -> tuple[str, ...]:
        """Return the path of the module whose call a frame is; of ``shards``, theirs."""
        module = owner_of(call) if shards is None else shards.modules[0]
        if module is None:
            return ()
        name = self._roles.known(module)
        if name is not None:
            return (name.path,)
        outer = call
        while outer is not None:
            call, outer = outer, _module_around(outer.f_back)
        return (str(self._roles.name_of(module, owner_of(call))),)

    def _line_of_node(self) -> int:
        node = _node()
        if node is None:
            return _NOWHERE
        marks = self._marks_here()
        number: int = marks.of(node) or _NOWHERE
        if number and _is_grad_enabled():
            marks.keep(number)
        return number

    def _marks_here(self) -> Marks:
        thread = get_ident()
        marks_here = self._marks.get(thread)
        if marks_here is None:
            marks_here = self._marks[thread] = Marks()
        return marks_here


def _module_around(frame: FrameType | None) -> FrameType | None:
    """Return the innermost call of a module, from a frame on."""
    while frame is not None and frame.f_code is not _CALL:
        frame = frame.f_back
    return frame


def _kind_of(code: CodeType) -> int:
    if code is _ENGINE:
        return _IS_ENGINE
    if code is _CALL:
        return _IS_MODULE
    is_method = code.co_varnames[:1] == ("self",) and code.co_name != "__init__"
    if is_method and code.co_qualname.startswith(_SHARDS):
        return _IS_SHARDS
    return _PROGRAM if is_of_program(code.co_filename) else _LIBRARY
