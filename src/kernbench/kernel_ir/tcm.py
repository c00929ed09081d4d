"""How much TCM one program needs, read off the kernel's text without a grid."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from kernbench.commands import SourceLine
from kernbench.kernel_ir.ir import Function, Module, Op, Type
from kernbench.kernel_ir.pipelining import num_stages_of, pipelined_loads, walk_ops

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


@dataclass(frozen=True, slots=True)
class TcmUse:
    """TCM that one program needs, and the tiles that make it up, largest first."""

    total_bytes: int
    tiles: tuple[TcmTile, ...]
    staged_bytes: int = 0
    """Of these: buffers of loads that are issued ahead."""

    @property
    def shared_bytes(self) -> int:
        """What of these a GPU has in shared memory, the rest being in registers.

        Loads that are issued ahead, or else the scratch by which the lanes of the largest tile
        exchange their elements, in parts of at most ``_SCRATCH_BYTES``.
        """
        return self.staged_bytes or min(self.total_bytes, _SCRATCH_BYTES)


# A memo, not state: modules do not change.
@functools.lru_cache(maxsize=256)
def tcm_use(module: Module, num_stages: int) -> TcmUse:
    """Return the TCM that a program of the module's kernel needs.

    Three parts are counted: each load that is issued ahead, ``num_stages`` times (all buffers are
    in flight at once); each accumulator of a ``tt.dot``, once; and of all other tiles the largest,
    once, for the tile that the math engine works on. Source of the first rule: the pruning of
    configurations in Triton's matmul tuning, ``(BLOCK_M + BLOCK_N) * BLOCK_K * num_stages * size``.
    """
    tiles: list[TcmTile] = []
    other: list[TcmTile] = []
    staged_bytes = sum(
        _collect(function, num_stages, tiles, other) for function in module.functions.values()
    )
    if other:
        tiles.append(max(other, key=lambda tile: tile.total_bytes))
    tiles.sort(key=lambda tile: -tile.total_bytes)
    return TcmUse(sum(tile.total_bytes for tile in tiles), tuple(tiles), staged_bytes)


def _collect(
    function: Function, num_stages: int, tiles: list[TcmTile], other: list[TcmTile]
) -> int:
    """Sort a function's tiles into those that count and the others; return the staged bytes."""
    staged_bytes = 0
    staged: dict[Op, int] = {}
    for op in walk_ops(function.body):
        if op.name == "scf.for":
            stages = num_stages_of(op, num_stages)
            staged.update((load, stages) for load in pipelined_loads(op))
    for op in walk_ops(function.body):
        for result in op.results:
            size = tile_bytes(result.type)
            if not size or not result.type.shape:
                continue
            if op.name in ("tt.dot", "tt.dot_scaled"):
                tiles.append(TcmTile(size, 1, f"accumulator {_shape(result.type)}", op.line))
            elif op in staged:
                what = f"load {_shape(result.type)}"
                tiles.append(TcmTile(size, staged[op], what, op.line))
                staged_bytes += tiles[-1].total_bytes
            elif result.type.is_float or op.name == "tt.load":
                what = f"{op.name} {_shape(result.type)}"
                if op.name != "arith.constant" and not op.regions:
                    other.append(TcmTile(size, 1, what, op.line))
    return staged_bytes


def tile_bytes(type_: Type) -> int:
    """Return the bytes of a tile of this type; pointers and descriptors take none."""
    if type_.dtype is None or type_.is_pointer or type_.is_descriptor:
        return 0
    return math.prod(type_.shape) * type_.dtype.itemsize


def _shape(type_: Type) -> str:
    assert type_.dtype is not None
    return "x".join([*map(str, type_.shape), type_.dtype.mlir])
