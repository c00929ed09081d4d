"""Notes what ranks allocate on SIPs, and where in the program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import isabstract, unwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kernbench.clock import is_of_program
from kernbench.memory import LiveAllocation
from kernbench.op_log import UNKNOWN_SITE

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from kernbench.clock import Simulation
    from kernbench.memory import AllocationLog, Buffer, Place
    from kernbench.runtime_api.base.actions import Keeper
    from kernbench.runtime_api.base.line_recorder import LineRecorder
    from kernbench.runtime_api.base.rank_state import RankState

_FRAMES_TO_MAKER = 5
"""From a recorder on: the device's memory, the storage, the tensor, its method, and the maker."""
_Maker = TypeVar("_Maker", bound=Callable[..., Any])
_NEITHER, _OF_LAYERS, _PROGRAM = range(3)
_LAYERS = str(Path(__file__).resolve().parents[2] / "tp") + "/"


class _Known:
    """Code that is known to the recorders of all runs."""

    maker: CodeType | None = None


def makes_results(function: _Maker) -> _Maker:
    """Decorate the function by which all operations allocate their results.

    From it to a recorder there are always the same frames, none of which is the program's: so they
    need not be looked at.
    """
    _Known.maker = unwrap(function).__code__
    return function


class MemoryRecorder:
    """Writes a run's allocations to its log.

    It appends to the log's own lists, and to those of the keeper of the run's actions: their own
    methods would cost each launch four more calls.
    """

    def __init__(
        self,
        log: AllocationLog,
        simulation: Simulation,
        main: RankState,
        lines: LineRecorder | None = None,
    ) -> None:
        self.keeper: Keeper | None = None
        """Notes where among the actions memory is allocated or freed, where actions are kept."""
        self._lines = lines
        self._simulation = simulation
        self._env = simulation.env
        self._main = main
        self._find = _Places().find
        self._next_event = log.next_event
        self._live = log.live
        self._put_begin = log.plain_begins.extend
        self._put_end = log.plain_ends.extend

    def allocated(self, buffer: Buffer, size_bytes: int) -> None:
        """Note a new buffer, which takes up some bytes."""
        try:
            frame = sys._getframe(_FRAMES_TO_MAKER)
            is_result = frame.f_code is _Known.maker
        except ValueError:  # a stack that is not as deep
            is_result = False
        place = self._find(frame.f_back if is_result else sys._getframe(2))
        running = self._simulation.running
        state = self._main if running is None else running.local
        begin = self._next_event()
        self._put_begin(
            (state.rank, buffer.sip_id, size_bytes, buffer.size_bytes, begin, self._env.now_ps,
             buffer.name, buffer.layout, place)
        )  # fmt: skip
        buffer.allocation = made = self._live[begin] = LiveAllocation()
        made.begin = begin
        keeper = self.keeper
        if keeper is not None:
            actor = keeper.actors.get(running) or keeper.actor
            keeper.memory_events += (begin, actor.number, len(actor.values) >> 2)
        lines = self._lines
        if is_result and lines is not None:
            lines.made, lines.made_at = made, place

    def freed(self, allocation: LiveAllocation) -> None:
        """Note that memory is free again."""
        begin, end = allocation.begin, self._next_event()
        allocation.end = end
        self._put_end(
            (begin, end, self._env.now_ps, allocation.phase, allocation.name, allocation.module)
        )
        del self._live[begin]
        keeper = self.keeper
        if keeper is not None:
            actor = keeper.actors.get(self._simulation.running) or keeper.actor
            keeper.memory_events += (end, actor.number, len(actor.values) >> 2)


class _Places:
    """Says where in the program, and in which layers of ``kernbench.tp``, something happens.

    What has happened at the same instruction, in the same layers, is known: which line that is
    would have to be counted from the beginning of its function.
    """

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        """Whose a file is; texts know their hash, and code does not."""
        self._layers: dict[int, tuple[CodeType, str]] = {}
        """By the identity of code: which class of layers it is of."""
        self._places: dict[tuple[int, int, tuple[str, ...]], Place] = {}
        """By the identity of code, the instruction and the layers, innermost first."""
        self._kept: dict[int, CodeType] = {}
        """The program's code that has an identity there."""

    def find(self, frame: FrameType | None) -> Place:
        """Return the layers, outermost first, and the line of the program."""
        files, layers_of = self._files, self._layers
        layers: tuple[str, ...] = ()
        while frame is not None:
            code = frame.f_code
            file = code.co_filename
            try:
                kind = files[file]
            except KeyError:
                kind = files[file] = _kind_of(file)
            if kind:
                if kind == _PROGRAM:
                    found = self._places.get((id(code), frame.f_lasti, layers))
                    return self._met(frame, layers) if found is None else found
                owner = layers_of.get(id(code)) or self._owner_of(frame)
                if owner[1]:
                    layers += owner[1:]
            frame = frame.f_back
        return (_path(layers), *UNKNOWN_SITE)

    def _met(self, frame: FrameType, layers: tuple[str, ...]) -> Place:
        """Return a place that something happens at for the first time."""
        code = frame.f_code
        self._kept[id(code)] = code
        found = (_path(layers), code.co_filename, frame.f_lineno)
        self._places[id(code), frame.f_lasti, layers] = found
        return found

    def _owner_of(self, frame: FrameType) -> tuple[CodeType, str]:
        """Return the class of layers whose code a frame runs; empty if it is of none."""
        code = frame.f_code
        owner = code.co_qualname.partition(".")[0]
        kind = frame.f_globals.get(owner)
        # A base class is not the layer's own.
        is_layer = isinstance(kind, type) and not isabstract(kind)
        found = self._layers[id(code)] = code, owner if is_layer else ""
        return found


def _path(layers: tuple[str, ...]) -> str:
    """Return layers, innermost first, as a path from the outermost on; each once in a row.

    >>> _path(("Linear", "Linear", "MLP"))
    'MLP/Linear'
    """
    path = ""
    for each in layers:
        if not path.startswith(each):
            path = f"{each}/{path}" if path else each
    return path


def _kind_of(file: str) -> int:
    if is_of_program(file):
        return _PROGRAM
    return _OF_LAYERS if file.startswith(_LAYERS) else _NEITHER
