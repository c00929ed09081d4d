"""How much TCM one program needs, read off the kernel's text without a grid."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from kernbench.commands import SourceLine
from kernbench.kernel_ir.analysis.live_tiles import LiveTiles, is_structured, most_at_once
from kernbench.kernel_ir.analysis.pipelining import (
    DOTS,
    num_stages_of,
    pipelined_loads,
)
from kernbench.kernel_ir.text.ir import Function, Module, Op, Type, Value

_WGMMA = 90
_SCRATCH_BYTES = 8192


@dataclass(frozen=True, slots=True)
class TcmTile:
    """One tile of the kernel that lives in TCM, ``copies`` times."""

    size_bytes: int
    copies: int
    what: str
    """How errors name it, e.g. ``load 64x32xf16``."""
    line: SourceLine

    @property
    def total_bytes(self) -> int:
        return self.size_bytes * self.copies


@dataclass(frozen=True)
class TcmUse:
    """TCM that one program needs, and the tiles that make it up, largest first."""

    total_bytes: int
    tiles: tuple[TcmTile, ...]
    staged: tuple[TcmTile, ...] = ()
    """Of these: the loads that are issued ahead, with as many buffers as there are stages."""

    @functools.cached_property
    def staged_bytes(self) -> int:
        """The most bytes of them on any PE; every launch asks."""
        return sum(tile.total_bytes for tile in self.staged)

    def loads(self, cuda_architecture: int | None) -> tuple[TcmTile, ...]:
        """Return the loads that are issued ahead, with the buffers that they have on such a PE.

        On GPUs whose tensor cores take operands from registers a load has a buffer less: the one
        that is consumed is free by the time that the next load is issued.
        Source: Triton's pipeliner gives a load as many buffers as there are stages from it to its
        use, ``num_stages - 1``, and one more where wgmma reads shared memory itself (9.0).
        """
        if cuda_architecture is None or cuda_architecture >= _WGMMA:
            return self.staged
        return tuple(replace(tile, copies=max(tile.copies - 1, 1)) for tile in self.staged)

    def loads_bytes(self, cuda_architecture: int | None) -> int:
        """Return the bytes of loads that are issued ahead on such a PE."""
        return sum(tile.total_bytes for tile in self.loads(cuda_architecture))

    def shared_bytes(self, cuda_architecture: int | None) -> int:
        """Return what of these a GPU has in shared memory, the rest being in registers.

        Loads that are issued ahead, or else the scratch by which the lanes of the largest tile
        exchange their elements, in parts of at most ``_SCRATCH_BYTES``.
        """
        return self.loads_bytes(cuda_architecture) or min(self.total_bytes, _SCRATCH_BYTES)


# A memo, not state: modules do not change.
@functools.lru_cache(maxsize=256)
def tcm_use(module: Module, num_stages: int) -> TcmUse:
    """Return the TCM that a program of the module's kernel needs.

    Three parts are counted: the loads of a loop that are issued ahead, ``num_stages`` times (all
    buffers are in flight at once); the accumulators of ``tt.dot``, once; of both those that are
    live at once; and of all other tiles the largest, once, which the math engine works on.
    Source of the first rule: the pruning of configurations in Triton's matmul tuning,
    ``(BLOCK_M + BLOCK_N) * BLOCK_K * num_stages * size``.
    """
    staged: list[TcmTile] = []
    tiles: list[TcmTile] = []
    other: list[TcmTile] = []
    for function in module.functions.values():
        staged += _staged(function, num_stages)
        tiles += _accumulators(function)
        other += _others(function)
    tiles += staged
    if other:
        tiles.append(max(other, key=lambda tile: tile.total_bytes))
    tiles.sort(key=lambda tile: -tile.total_bytes)
    total_bytes = sum(tile.total_bytes for tile in tiles)
    return TcmUse(total_bytes, tuple(tiles), tuple(staged))


def _staged(function: Function, num_stages: int) -> list[TcmTile]:
    """Return the loads that are issued ahead in the loops of which the most are live at once."""
    found: list[tuple[Op, TcmTile]] = []
    for loop in function.body.walk():
        if loop.name != "scf.for":
            continue
        stages = num_stages_of(loop, num_stages)
        found += [
            (loop, _tile(load, result, "load", stages))
            for load in pipelined_loads(loop)
            for result in load.results
            if tile_bytes(result.type) and result.type.shape
        ]
    if len({loop for loop, _ in found}) <= 1 or not is_structured(function):
        return [tile for _, tile in found]
    live = LiveTiles(function)
    return most_at_once((tile, tile.total_bytes, live.span(loop)) for loop, tile in found)


def _accumulators(function: Function) -> list[TcmTile]:
    dots = [op for op in function.body.walk() if op.name in DOTS]
    if len(dots) <= 1 or not is_structured(function):
        return [_tile(op, op.results[0], "accumulator") for op in dots]
    held = [
        (_tile(op, op.results[0], "accumulator"), span)
        for op, span in LiveTiles(function).accumulators()
    ]
    return most_at_once((tile, tile.total_bytes, span) for tile, span in held)


def _others(function: Function) -> list[TcmTile]:
    staged = {
        load
        for loop in function.body.walk()
        if loop.name == "scf.for"
        for load in pipelined_loads(loop)
    }
    found = []
    for op in function.body.walk():
        if op in staged or op.name in DOTS or op.name == "arith.constant" or op.regions:
            continue
        for result in op.results:
            is_data = result.type.is_float or op.name == "tt.load"
            if is_data and tile_bytes(result.type) and result.type.shape:
                found.append(_tile(op, result, op.name))
    return found


def _tile(op: Op, result: Value, what: str, copies: int = 1) -> TcmTile:
    return TcmTile(tile_bytes(result.type), copies, f"{what} {_shape(result.type)}", op.line)


def tile_bytes(type_: Type) -> int:
    """Return the bytes of a tile of this type; pointers and descriptors take none."""
    if type_.dtype is None or type_.is_pointer or type_.is_descriptor:
        return 0
    return math.prod(type_.shape) * type_.dtype.itemsize


def _shape(type_: Type) -> str:
    assert type_.dtype is not None
    return "x".join([*map(str, type_.shape), type_.dtype.mlir])
