"""Notes what ranks allocate on SIPs, and where in the program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from inspect import isabstract, unwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kernbench.clock import is_of_program

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from kernbench.clock import Simulation
    from kernbench.memory import AllocationLog, Buffer, LiveAllocation
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
    """Writes a run's allocations to its log."""

    def __init__(
        self,
        log: AllocationLog,
        simulation: Simulation,
        main: RankState,
        lines: LineRecorder | None = None,
    ) -> None:
        self._log = log
        self._lines = lines
        self._simulation = simulation
        self._env = simulation.env
        self._main = main
        self._find = _Sites().find

    def allocated(self, buffer: Buffer, size_bytes: int) -> None:
        """Note a new buffer, which takes up some bytes."""
        try:
            frame = sys._getframe(_FRAMES_TO_MAKER)
            is_result = frame.f_code is _Known.maker
        except ValueError:  # a stack that is not as deep
            is_result = False
        layers, file, line = self._find(frame if is_result else sys._getframe(2))
        running = self._simulation.running
        state = self._main if running is None else running.local
        name, opening, rest = buffer.label.rpartition(" (")
        shape, dtype = _shape_and_dtype(rest)
        if not (opening and dtype):
            name, shape = buffer.label, ()
        buffer.allocation = made = self._log.began(
            state.rank, buffer.sip_id, size_bytes, buffer.size_bytes, self._env.now_ps,
            name, shape, dtype, layers, file, line,
        )  # fmt: skip
        if is_result and self._lines is not None:
            self._lines.made = made, (file, line)

    def freed(self, allocation: LiveAllocation) -> None:
        """Note that memory is free again."""
        self._log.ended(allocation, self._env.now_ps)


@lru_cache(maxsize=4096)
def _shape_and_dtype(text: str) -> tuple[tuple[int, ...], str]:
    """Return what stands behind a name in the label of a tensor; no dtype if it is none.

    >>> _shape_and_dtype("4, 8) float16")
    ((4, 8), 'float16')
    """
    sizes, closing, dtype = text.partition(") ")
    if not closing:
        return (), ""
    return tuple(int(size) for size in sizes.split(",") if size), dtype


class _Sites:
    """Says where in the program, and in which layers of ``kernbench.tp``, something happens."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        """Whose a file is; texts know their hash, and code does not."""
        self._layers: dict[int, tuple[CodeType, str]] = {}
        """By the identity of code: which class of layers it is of."""

    def find(self, frame: FrameType | None) -> tuple[str, str, int]:
        """Return the layers, outermost first, and the file and the line of the program."""
        files = self._files
        layers = ""
        while frame is not None:
            file = frame.f_code.co_filename
            try:
                kind = files[file]
            except KeyError:
                kind = files[file] = _kind_of(file)
            if kind:
                if kind == _PROGRAM:
                    return layers, file, frame.f_lineno
                owner = self._owner_of(frame)
                if owner and not layers.startswith(owner):
                    layers = f"{owner}/{layers}" if layers else owner
            frame = frame.f_back
        return layers, "", 0

    def _owner_of(self, frame: FrameType) -> str:
        """Return the class of layers whose code a frame runs; empty if it is of none."""
        code = frame.f_code
        found = self._layers.get(id(code))
        if found is None:
            owner = code.co_qualname.partition(".")[0]
            kind = frame.f_globals.get(owner)
            # A base class is not the layer's own.
            is_layer = isinstance(kind, type) and not isabstract(kind)
            found = self._layers[id(code)] = code, owner if is_layer else ""
        return found[1]


def _kind_of(file: str) -> int:
    if is_of_program(file):
        return _PROGRAM
    return _OF_LAYERS if file.startswith(_LAYERS) else _NEITHER
