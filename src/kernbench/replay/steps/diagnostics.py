"""``tl.device_print`` and ``tl.device_assert`` on data (ADR-0051)."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from kernbench.commands import PROGRAM, Access, Assert, Print, axis_dim
from kernbench.dtypes import Array
from kernbench.errors import DeviceAssertError, UnsupportedOpError
from kernbench.replay.steps.frame import Frame
from kernbench.replay.steps.sites import Chunks, at_frame


class PrintStep:
    """A step that keeps what each program of a chunk prints, until the launch has ended."""

    def __init__(self, command: Print, slots: tuple[int, ...], chunks: Chunks) -> None:
        """``slots`` hold the values; for pointers their contents are ignored."""
        self._command, self._slots, self._chunks = command, slots, chunks

    def __call__(self, frame: Frame) -> None:
        command = self._command
        values = [
            self._pointers(frame, value)
            if isinstance(value, Access)
            else np.array(_spread(frame, frame.values[slot], value.shape))
            for value, slot in zip(command.values, self._slots, strict=True)
        ]
        frame.printed.append((command, self._chunks.grid, programs_of(self._chunks, frame), values))

    def _pointers(self, frame: Frame, value: Access) -> Array:
        if value.gather is not None:
            raise UnsupportedOpError(
                f"tt.print at {self._command.line} prints pointers that depend on data, which is "
                "not supported; print the offsets"
            )
        dims = (PROGRAM, *(axis_dim(axis) for axis in range(len(value.shape))))
        offsets = at_frame(value.offset, frame, self._chunks).dense(dims)
        start = 0
        if value.param >= 0:
            start = frame.pointers[value.param].buffer.address + frame.origin[value.param]
        return np.array(_spread(frame, offsets + start, value.shape))


class AssertStep:
    """A step that raises if a condition is false in some element of some program."""

    def __init__(self, command: Assert, slot: int, chunks: Chunks, kernel: str) -> None:
        self._command, self._slot, self._chunks = command, slot, chunks
        self._kernel = kernel

    def __call__(self, frame: Frame) -> None:
        command = self._command
        held = np.asarray(frame.values[self._slot]).astype(np.bool_)
        if held.all():
            return
        held = _spread(frame, held, command.condition.shape)
        first, *element = (int(axis[0]) for axis in np.nonzero(~held))
        program = int(programs_of(self._chunks, frame)[first])
        where = f", element {tuple(element)}" if element else ""
        raise DeviceAssertError(
            f"{command.message or 'assertion failed'}: tl.device_assert at {command.line} of "
            f"kernel {self._kernel} does not hold in program "
            f"{coordinates(program, self._chunks.grid)}{where}"
        )


def programs_of(chunks: Chunks, frame: Frame) -> Array:
    """Return the linear ids of the programs in the current chunk of a frame."""
    first = chunks.bounds[frame.chunk]
    return chunks.program_ids[first : first + frame.num_programs]


def coordinates(program: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the program id along each axis of the grid."""
    x, y, _ = grid
    return program % x, program // x % y, program // (x * y)


def _spread(frame: Frame, value: Array, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(value, (frame.num_programs, *shape))


def show_printed(frame: Frame) -> None:
    """Print what the launch printed: programs in order, each in the order of its statements."""
    if not frame.printed:
        return
    order = [
        (int(program), number, position)
        for number, (_, _, programs, _) in enumerate(frame.printed)
        for position, program in enumerate(programs)
    ]
    order.sort()
    out = sys.stdout
    for program, number, position in order:
        command, grid, _, values = frame.printed[number]
        lines = to_lines(command, coordinates(program, grid), [value[position] for value in values])
        out.write("".join(f"{line}\n" for line in lines))
    frame.printed.clear()


def to_lines(command: Print, program: tuple[int, int, int], values: list[Array]) -> list[str]:
    """Return the lines that Triton's GPU backends would print: one per element.

    Source: Triton, ``PrintOpToLLVM.cpp``.
    """
    x, y, z = program
    pid = f"pid ({x}, {y}, {z})"
    if not values:
        return [f"{pid}{command.prefix}"]
    lines = []
    for number, (value, printed) in enumerate(zip(values, command.values, strict=True)):
        operand = f"(operand {number}) " if len(values) > 1 else ""
        widths = [math.ceil(math.log10(length)) if length > 0 else 0 for length in value.shape]
        is_pointer = isinstance(printed, Access)
        for index in np.ndindex(value.shape):
            place = ", ".join(str(i).rjust(w) for i, w in zip(index, widths, strict=True))
            text = (
                f"{int(value[index]):#x}"
                if is_pointer
                else _format(value[index], command.signed[number], command.hex)
            )
            lines.append(f"{pid} idx ({place}){command.prefix}{operand}{text}")
    return lines


def _format(value: Any, signed: bool, as_hex: bool) -> str:
    """Return one element as printf would: ``%f``, ``%i``, ``%u`` or zero-filled hex."""
    array = np.asarray(value)
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "b":
        return f"0x{int(array):x}" if as_hex else str(int(array))
    bits = int(array.view(f"u{size}"))
    if as_hex:
        return f"0x{bits:0{2 * size}x}"
    if kind in "iu":
        sign = 1 << (8 * size - 1)
        return str((bits ^ sign) - sign if signed else bits)
    return f"{float(array):f}"
