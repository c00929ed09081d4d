"""What a kernel tells the compiler, held against the values (ADR-0232).

``tl.multiple_of``, ``tl.max_contiguous``, ``tl.max_constancy`` and ``tl.assume`` change no number
here. On a GPU they decide which bytes an access moves.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from kernbench.commands import (
    PROGRAM,
    Command,
    DmaRead,
    Hint,
    KernelTrace,
    Math,
    Predicate,
    Separable,
    axis_dim,
    is_loop,
)
from kernbench.dtypes import Array
from kernbench.errors import WrongHintError
from kernbench.replay import Frame, GroupPlan, PointerArg, Step, coordinates, full
from kernbench.sanitizer.accesses import WatchedAccess
from kernbench.sanitizer.check import Check
from kernbench.sanitizer.facts.launch import Launched
from kernbench.sanitizer.launch_state import LaunchState

_CHUNK_ELEMENTS = 1 << 20
# A memo, not state: traces all of whose known hints hold, freed with the trace.
_HOLDING: weakref.WeakSet[KernelTrace] = weakref.WeakSet()


class Hints(Check):
    """Refuses hints that do not hold."""

    @classmethod
    def planned(cls, trace: KernelTrace, launched: Launched) -> None:
        if trace in _HOLDING:
            return
        for group in trace.groups:
            cls.hinted(group.hints, group.program_ids, trace.grid, launched)
        _HOLDING.add(trace)

    @classmethod
    def hinted(
        cls,
        hints: Sequence[Hint],
        program_ids: Array,
        grid: tuple[int, int, int],
        launched: Launched,
    ) -> None:
        for hint in hints:
            if hint.held is None or hint.param >= 0:
                # A barrier; or what depends on the launch.
                continue
            for ids, values in _chunks(hint, program_ids):
                bad = _wrong(hint, values)
                if bad.any():
                    raise _error(hint, values, bad, ids, grid, launched)

    def begin(self, launch: LaunchState) -> None:
        source = self.kernel.source
        for group in source.groups if isinstance(source, KernelTrace) else ():
            hints = [_at_address(hint, launch) for hint in group.hints if hint.param >= 0]
            self.hinted(hints, group.program_ids, launch.grid, launch.launched)

    def after(self, group: GroupPlan, access: WatchedAccess) -> list[Step]:
        command = access.command
        if not isinstance(command, DmaRead) or not command.hints:
            return []
        return _steps(group, command.hints, command.dst.slot, command.dst.shape)

    def computed(self, group: GroupPlan, command: Command, inputs: list[int]) -> list[Step]:
        if not isinstance(command, Math) or "hints" not in command.attrs:
            return []
        return _steps(group, command.attrs["hints"], command.dst.slot, command.dst.shape)


def _at_address(hint: Hint, launch: LaunchState) -> Hint:
    """Return a hint of a pointer as one of addresses, counted from one that is aligned."""
    pointer = launch.params[hint.param]
    assert isinstance(pointer, PointerArg)
    assert isinstance(hint.held, Separable)
    past = (pointer.buffer.address + pointer.offset_bytes) % math.lcm(*hint.values)
    return replace(hint, held=hint.held + Separable((), past), param=-1)


def _steps(
    group: GroupPlan, hints: Sequence[Hint], slot: int, shape: tuple[int, ...]
) -> list[Step]:
    shadow = group.shadow(slot)
    return [partial(_look, group, hint, slot, shadow, shape) for hint in hints]


def _look(
    group: GroupPlan, hint: Hint, slot: int, shadow: int, shape: tuple[int, ...], frame: Frame
) -> None:
    values = full(frame.values[slot], shape)
    bad = _wrong(hint, values)
    unknown = frame.values[shadow]
    if unknown is not None:
        bad = bad & (unknown == 0)
    if bad.any():
        state: LaunchState = frame.state
        chunks = group.chunks
        first = chunks.bounds[frame.chunk]
        bad = np.broadcast_to(bad, (frame.num_programs, *shape))
        ids = chunks.program_ids[first : first + frame.num_programs]
        values = np.broadcast_to(values, bad.shape)
        raise _error(hint, values, bad, ids, state.grid, state.launched)


def _chunks(hint: Hint, program_ids: Array) -> Iterator[tuple[Array, Array]]:
    """Yield values ``[rows, *tile]`` and the program of each row: a row per iteration of it."""
    held = hint.held
    assert held is not None
    shape = held.shape
    axes = tuple(axis_dim(axis) for axis in range(len(shape)))
    loops = tuple(dim for dim in held.dims if is_loop(dim))
    which = _telling(hint, held, len(program_ids))
    length = max(_CHUNK_ELEMENTS // max(int(np.prod(shape, dtype=np.int64)), 1), 1)
    for start in range(0, len(which), length):
        positions = which[start : start + length]
        dense = held.take_programs(positions).dense((PROGRAM, *loops, *axes))
        outer = dense.shape[: 1 + len(loops)]
        rows = np.broadcast_to(dense, (*outer, *shape)).reshape(-1, *shape)
        ids = program_ids[positions[: len(dense)]]
        yield np.repeat(ids, len(rows) // len(dense)), rows


def _telling(hint: Hint, held: Separable | Predicate, count: int) -> Array:
    """Return positions of programs, one of each kind: of a large grid most are alike."""
    if PROGRAM not in held.dims:
        return np.zeros(1, np.int64)
    mixed = any(PROGRAM in dims and dims != (PROGRAM,) for dims in held.terms)
    if mixed or isinstance(held, Predicate):
        return np.arange(count)
    # All that a program adds is one number: where its runs begin, by what they are held to.
    own = held.terms[PROGRAM,] % math.lcm(*(max(value, 1) for value in hint.values))
    return np.sort(np.unique(own, return_index=True)[1])


def _wrong(hint: Hint, values: Array) -> Array:
    """Return the elements of ``[rows, *tile]`` for which a hint does not hold."""
    if hint.name == "assume":
        return np.asarray(~values.astype(np.bool_))
    shape = values.shape
    # A scalar is a run of its own.
    values = values.astype(np.int64).reshape(shape if len(shape) > 1 else (-1, 1))
    bad = np.zeros(values.shape, np.bool_)
    for axis, number in enumerate(hint.values[: values.ndim - 1], start=1):
        if number > 1:
            along = np.moveaxis(values, axis, -1)
            wrong = _unaligned if hint.name == "divisibility" else _out_of_line
            bad |= np.moveaxis(wrong(hint, along, number), -1, axis)
    return bad.reshape(shape)


def _unaligned(hint: Hint, along: Array, multiple: int) -> Array:
    """Return the elements that begin a run at no multiple of a number, along the last axis."""
    starts = np.ones(along.shape, np.bool_)
    starts[..., 1:] = along[..., 1:] != along[..., :-1] + hint.step
    return np.asarray(starts & (along % multiple != 0))


def _out_of_line(hint: Hint, along: Array, length: int) -> Array:
    """Return the elements that do not continue the group that they are in."""
    length = min(length, along.shape[-1])
    groups = along.reshape((*along.shape[:-1], -1, length))
    expected: Array = groups[..., :1]
    if hint.name == "contiguity":
        expected = expected + hint.step * np.arange(length)
        if hint.wraps:
            # Lanes beyond the end fall back; what they compute is dropped.
            return np.asarray(groups > expected).reshape(along.shape)
    return np.asarray(groups != expected).reshape(along.shape)


_SAYS = {
    "divisibility": "tl.multiple_of says that runs of elements begin at multiples of {0}",
    "contiguity": "tl.max_contiguous says that {0} elements follow each other",
    "constancy": "tl.max_constancy says that {0} elements are equal",
    "assume": "tl.assume does not hold",
}


def _error(
    hint: Hint,
    values: Array,
    bad: Array,
    program_ids: Array,
    grid: tuple[int, int, int],
    launched: Launched,
) -> WrongHintError:
    row, *at = (int(axis[0]) for axis in np.nonzero(bad.reshape(values.shape)))
    program = coordinates(int(program_ids[row]), grid)
    says = _SAYS[hint.name].format(", ".join(map(str, hint.values)))
    where = f"{says} at {hint.line} ({launched}, program {program})"
    if hint.name != "assume":
        place = f"element {tuple(at)}" if at else "the value"
        near = f" after {values[(row, *at[:-1], at[-1] - 1)]}" if at and at[-1] else ""
        of = " bytes past an aligned address" if hint.step > 1 else ""
        where += f", but {place} is {values[(row, *at)]}{near}{of}"
    return WrongHintError(
        f"{where}; a GPU would move the wrong bytes, or fault: leave the hint out, or make it true"
    )
