"""One access of a plan: the geometry of each chunk and iteration, computed once and kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from kernbench.checks import Allowed, remedy
from kernbench.commands import (
    PROGRAM,
    Access,
    Atomic,
    Mask,
    Predicate,
    Separable,
    SourceLine,
    Tile,
    axis_dim,
    is_loop,
)
from kernbench.dtypes import Array
from kernbench.errors import OutOfBoundsError, UnsupportedOpError
from kernbench.replay.steps.frame import Frame, typed_view
from kernbench.replay.steps.geometry import Box, Geometry, Stretch, build_geometry

Tensor = TypeVar("Tensor", Separable, Predicate)

_MAX_KEPT_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """The chunks of a group's programs: chunk ``i`` is ``bounds[i]`` to ``bounds[i + 1]``."""

    bounds: tuple[int, ...]
    program_ids: Array
    grid: tuple[int, int, int]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def program(self, position: int) -> tuple[int, int, int]:
        """Return the grid coordinates of the program at ``position`` of the group."""
        linear = int(self.program_ids[position])
        x, y, _ = self.grid
        return linear % x, linear // x % y, linear // (x * y)


class AccessSite:
    """One access of a trace: computes the geometry for a frame's chunk and iterations."""

    def __init__(
        self,
        access: Access,
        mask: Mask,
        line: SourceLine,
        chunks: Chunks,
        *,
        is_store: bool,
        atomic: str = "",
    ) -> None:
        if access.param < 0:
            raise UnsupportedOpError(
                f"{'tt.store' if is_store else 'tt.load'} at {line} uses an absolute address "
                "(a pointer made from an integer); pass the tensor as an argument"
            )
        self.access, self.mask, self.line, self.chunks = access, mask, line, chunks
        self.is_store = is_store
        self.atomic = atomic
        self.param = access.param
        self.dtype = access.dtype.numpy
        self.itemsize = access.dtype.itemsize
        self.predicate = mask if isinstance(mask, Predicate) else Predicate(access.shape)
        self._advance: list[tuple[int, list[int]]] = []
        self._offset = self._without_advance(access.offset)
        self._classes = self._loop_classes()
        self._kept: dict[Any, Geometry] = {}
        self._kept_bytes = 0
        self.fixed = not self._advance and not self._classes

    def _without_advance(self, offset: Separable) -> Separable:
        """Return the offset without terms that only add a number per iteration; keep those."""
        rest: dict[tuple[int, ...], Array] = {}
        for dims, array in offset.terms.items():
            if len(dims) == 1 and is_loop(dims[0]):
                self._advance.append((dims[0] - 1, array.tolist()))
            else:
                rest[dims] = array
        return Separable(offset.shape, offset.const, rest)

    def _loop_classes(self) -> list[tuple[int, list[int]]]:
        """Return per loop the class of each iteration; iterations of one class share a geometry."""
        classes: dict[int, list[int]] = {}
        for dims, array in self._offset.terms.items():
            for where, dim in enumerate(dims):
                if is_loop(dim):
                    classes[dim] = list(range(array.shape[where]))
        for dims, array in self.predicate.terms.items():
            loops = [dim for dim in dims if is_loop(dim)]
            for dim in loops:
                where = dims.index(dim)
                known = classes.get(dim)
                count = array.shape[where]
                if len(loops) > 1:
                    classes[dim] = list(range(count))
                else:
                    others = tuple(axis for axis in range(array.ndim) if axis != where)
                    true: Array = np.logical_and.reduce(array, axis=others)
                    mine = [-1 if full else k for k, full in enumerate(true.tolist())]
                    if known is not None:
                        mine = [max(a, b) for a, b in zip(mine, known, strict=True)]
                    classes[dim] = mine
        return [(dim - 1, by_iteration) for dim, by_iteration in classes.items()]

    def geometry(self, frame: Frame) -> Geometry:
        """Return the geometry for the frame's chunk and iterations."""
        key: Any = frame.chunk
        if self._classes:
            now = frame.iterations
            key = (frame.chunk, *[classes[now[loop]] for loop, classes in self._classes])
        result = self._kept.get(key)
        if result is None:
            result = build_geometry(
                self.at(self._offset, frame),
                self.at(self.predicate, frame),
                self.itemsize,
                frame.num_programs,
                ordered=self.is_store,
                narrow=not self.is_store,
            )
            if self._kept_bytes + result.size_bytes <= _MAX_KEPT_BYTES:
                self._kept[key] = result
                self._kept_bytes += result.size_bytes
        return result

    def origin(self, frame: Frame) -> int:
        """Return the byte in the buffer to which the geometry's offsets are relative."""
        origin = frame.origin[self.param]
        for loop, steps in self._advance:
            origin += steps[frame.iterations[loop]]
        return origin

    def at(self, tensor: Tensor, frame: Frame) -> Tensor:
        """Return the tensor for the frame's iterations and the programs of its chunk."""
        return at_frame(tensor, frame, self.chunks)

    def dense(self, frame: Frame) -> tuple[Array, Array]:
        """Return byte offsets and activity ``[programs, *tile]`` (length 1 where constant)."""
        dims = (PROGRAM, *(axis_dim(axis) for axis in range(len(self.access.shape))))
        offsets = self.at(self._offset, frame).dense(dims)
        if self.access.gather is not None:
            offsets = offsets + frame.values[self.access.gather.slot]
        if isinstance(self.mask, Tile):
            return offsets, frame.values[self.mask.slot]
        return offsets, self.at(self.predicate, frame).dense(dims)

    def box_view(self, frame: Frame, box: Box | Stretch, origin: int) -> Array:
        """Return the memory of a box, or of a stretch, as an array.

        Raises:
            OutOfBoundsError: Part of it is outside the buffer.
        """
        try:
            return np.ndarray(
                box.view_shape,
                self.dtype,
                frame.memory[self.param],
                origin + box.offset,
                box.view_strides,
            )
        except (ValueError, TypeError):
            raise self.out_of_bounds(frame) from None

    def elements_view(self, frame: Frame, low: int, high: int) -> Array:
        """Return bytes ``low`` to ``high`` of the buffer as elements."""
        try:
            return typed_view(frame.memory[self.param], self.dtype, low, high)
        except (ValueError, TypeError):
            raise self.out_of_bounds(frame) from None

    def out_of_bounds(self, frame: Frame) -> OutOfBoundsError:
        """Return the error that names the first element outside the buffer, in program order."""
        instead = "" if self.is_store else f", {remedy(Allowed.OUT_OF_BOUNDS_READS)}"
        return OutOfBoundsError(f"{self.leaves_memory(frame)}; mask the {self.op}{instead}")

    def leaves_memory(self, frame: Frame) -> str:
        """Return the text that names the first element outside the buffer, in program order."""
        buffer = frame.pointers[self.param].buffer
        offsets, active = self.dense(frame)
        shape = (frame.num_programs, *self.access.shape)
        where = np.broadcast_to(offsets, shape) + self.origin(frame)
        outside = (where < 0) | (where + self.itemsize > buffer.size_bytes)
        outside &= np.broadcast_to(active, shape)
        flat = int(np.argmax(outside))
        position = flat // max(int(np.prod(self.access.shape, dtype=np.int64)), 1)
        program = self.chunks.program(self.chunks.bounds[frame.chunk] + position)
        byte = int(where.reshape(-1)[flat])
        name = buffer.label.partition(" ")[0]
        return (
            f"tt.{self.op} at {self.line} {self.verb} {self.itemsize} bytes at {name}{byte:+d} "
            f"(program {program}), but {buffer.label} is {buffer.size_bytes} bytes"
        )

    def misaligned(self) -> UnsupportedOpError:
        """Return the error of an atomic on bytes that are not aligned to elements of the tensor."""
        return UnsupportedOpError(
            f"tt.{self.op} at {self.line} {self.verb} {self.itemsize} bytes at addresses that are "
            f"not multiples of {self.itemsize}; align the tensor"
        )

    @property
    def op(self) -> str:
        """The name of the access in errors."""
        return self.atomic or ("store" if self.is_store else "load")

    @property
    def verb(self) -> str:
        """The verb of the access in errors."""
        return "updates" if self.atomic else "writes" if self.is_store else "reads"


def atomic_name(command: Atomic) -> str:
    """Return the name of an atomic in errors."""
    return "atomic_cas" if command.kind == "cas" else "atomic_rmw"


def at_frame(tensor: Tensor, frame: Frame, chunks: Chunks) -> Tensor:
    """Return the tensor for the frame's iterations and the programs of its chunk."""
    start, end = chunks.bounds[frame.chunk], chunks.bounds[frame.chunk + 1]
    for dim in tensor.dims:
        if is_loop(dim):
            tensor = tensor.at(dim, frame.iterations[dim - 1])
    terms: dict[tuple[int, ...], Array] = {}
    const = 0
    for dims, array in tensor.terms.items():
        if dims and dims[0] == PROGRAM:
            part = array[start:end] if len(array) > 1 else array
            if (part == part[:1]).all():
                dims, part = dims[1:], part[0]
            array = part
        if not dims and isinstance(tensor, Separable):
            const += int(array)
        elif dims in terms:
            terms[dims] = (
                terms[dims] + array if isinstance(tensor, Separable) else terms[dims] & array
            )
        else:
            terms[dims] = array
    if isinstance(tensor, Separable):
        return Separable(tensor.shape, tensor.const + const, terms)
    return Predicate(tensor.shape, {d: a for d, a in terms.items() if not a.all()})
