"""Notes what ranks allocate on SIPs, and where in the program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import isabstract, unwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kernbench.clock import Simulation, is_of_program
from kernbench.memory import AllocationLog, Buffer, LiveAllocation, Place
from kernbench.op_log import UNKNOWN_SITE

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from kernbench.runtime_api.base.actions import Keeper
    from kernbench.runtime_api.base.rank_state import RankState
    from kernbench.runtime_api.base.recorder import LineRecorder

_FRAMES_TO_MAKER = 5
"""From a recorder on: the device's memory, the storage, the tensor, its method, and the maker."""
_Maker = TypeVar("_Maker", bound=Callable[..., Any])
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
        self._find = ProgramPlaces().find
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
        buffer.allocation = live_allocation = self._live[begin] = LiveAllocation()
        live_allocation.begin = begin
        keeper = self.keeper
        if keeper is not None:
            actor = keeper.actors.get(running) or keeper.actor
            keeper.memory_events += (begin, actor.number, len(actor.values))
        lines = self._lines
        if is_result and lines is not None:
            lines.newest, lines.newest_at = live_allocation, place

    def freed(self, allocation: LiveAllocation) -> None:
        """Note that memory is free again."""
        begin, end = allocation.begin, self._next_event()
        self._put_end(
            (begin, end, self._env.now_ps, allocation.phase, allocation.name, allocation.module)
        )
        del self._live[begin]
        keeper = self.keeper
        if keeper is not None:
            actor = keeper.actors.get(self._simulation.running) or keeper.actor
            keeper.memory_events += (end, actor.number, len(actor.values))


class _OwnersOfFiles(dict[str, "_LayersOfFile | None"]):
    """What a file is: the program's own (:data:`_PROGRAM`), of layers, or neither (None)."""

    def __missing__(self, file: str) -> _LayersOfFile | None:
        owners = _LayersOfFile() if file.startswith(_LAYERS) else None
        self[file] = program = _PROGRAM if is_of_program(file) else owners
        return program


class _LayersOfFile(dict[str, tuple[str, ...]]):
    """The class of layers that code of a file is of, by the code's name; empty: of none."""


_PROGRAM = _LayersOfFile()


class ProgramPlaces:
    """Says where in the program, and in which layers of ``kernbench.tp``, something happens.

    What has happened at the same instruction, in the same layers, is known: which line that is
    would have to be counted from the beginning of its function.
    """

    def __init__(self) -> None:
        self._files = _OwnersOfFiles()
        """The owners of files by name; texts know their hash, and code does not."""
        self._places: dict[tuple[int, int, tuple[str, ...]], Place] = {}
        """The place of an allocation by the identity of code, the instruction and the layers,
        innermost first."""
        self._kept: dict[int, CodeType] = {}
        """The program's code that has an identity there."""

    def find(self, frame: FrameType | None) -> Place:
        """Return the layers, outermost first, and the line of the program."""
        files = self._files
        layers: tuple[str, ...] = ()
        while frame is not None:
            owners = files[frame.f_code.co_filename]
            if owners is not None:
                code = frame.f_code
                if owners is _PROGRAM:
                    return self.at(frame, layers)
                owner = owners.get(code.co_qualname)
                layers += _owner_of(frame, owners) if owner is None else owner
            frame = frame.f_back
        return (_path(layers), *UNKNOWN_SITE)

    def at(self, frame: FrameType, layers: tuple[str, ...]) -> Place:
        """Return the place of a frame of the program, in layers, innermost first."""
        code = frame.f_code
        known = (id(code), frame.f_lasti, layers)
        place = self._places.get(known)
        if place is None:
            self._kept[id(code)] = code
            place = self._places[known] = (_path(layers), code.co_filename, frame.f_lineno)
        return place


def _owner_of(frame: FrameType, owners: _LayersOfFile) -> tuple[str, ...]:
    """Return the class of layers whose code a frame runs, and keep it among those of its file."""
    name = frame.f_code.co_qualname
    owner = name.partition(".")[0]
    kind = frame.f_globals.get(owner)
    # A base class is not the layer's own.
    is_layer = isinstance(kind, type) and not isabstract(kind)
    owners[name] = result = (owner,) if is_layer else ()
    return result


def _path(layers: tuple[str, ...]) -> str:
    """Return layers, innermost first, as a path from the outermost on; each once in a row.

    >>> _path(("Linear", "Linear", "MLP"))
    'MLP/Linear'
    """
    path = ""
    for layer in layers:
        if not path.startswith(layer):
            path = f"{layer}/{path}" if path else layer
    return path
