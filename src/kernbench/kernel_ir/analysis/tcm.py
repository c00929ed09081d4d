"""How much TCM one program needs, read off the kernel's text without a grid."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from kernbench.commands import SourceLine
from kernbench.kernel_ir.analysis.layouts import (
    MatrixUnit,
    chained_product,
    lies_across,
    matrix_unit,
)
from kernbench.kernel_ir.analysis.live_tiles import (
    DOTS,
    LiveTiles,
    buffered_stages,
    is_structured,
    most_at_once,
    num_stages_of,
    pipelined_loads,
)
from kernbench.kernel_ir.analysis.registers import NO_REGISTERS, RegisterUse, register_use
from kernbench.kernel_ir.text.ir import Function, Module, Op, Type, Value

_SCRATCH_BYTES = 8192
_EXCHANGE_BYTES = 65536
"""The most that Triton takes at a time where threads exchange a tile."""
_VIEWS = ("tt.trans", "tt.reshape", "ttg.memdesc_trans")
_IN_PLACE = ("arith.", "math.", "tt.fp_to_fp")


@dataclass(frozen=True, slots=True)
class TcmTile:
    """One tile of the kernel that lives in TCM, ``copies`` times."""

    size_bytes: int
    copies: int
    what: str
    """How errors name it, e.g. ``load 64x32xf16``."""
    line: SourceLine
    rows: int = 0
    """Rows of the product that it feeds, 0 if none."""

    @property
    def total_bytes(self) -> int:
        return self.size_bytes * self.copies


@dataclass(frozen=True)
class TcmUse:
    """TCM that one program needs, and the tiles that make it up, largest first."""

    total_bytes: int
    tiles: tuple[TcmTile, ...]
    staged: tuple[TcmTile, ...] = ()
    """The loads among these that are issued ahead, with as many buffers as there are stages."""
    num_stages: int = 1
    """Those of the launch."""
    functions: tuple[Function, ...] = ()
    """Functions of the module: what only GPUs need is computed when they ask."""

    @functools.cached_property
    def operands(self) -> tuple[TcmTile, ...]:
        """Operands of products that are not issued ahead, and that a GPU has in shared memory."""
        stages = self.num_stages
        return tuple(tile for function in self.functions for tile in _operands(function, stages))

    @functools.cached_property
    def chained(self) -> Op | None:
        """The last product whose first factor is computed of another one; None without."""
        products = map(chained_product, self.functions)
        return next((product for product in products if product is not None), None)

    def _crossing(self, cuda_architecture: int, num_warps: int) -> tuple[TcmTile, ...]:
        """Return the factor that goes to other warps through shared memory, if one does."""
        if not self.lies_across(cuda_architecture, num_warps):
            return ()
        assert self.chained is not None
        return (_tile(self.chained, self.chained.operands[0], "factor"),)

    def lies_across(self, cuda_architecture: int, num_warps: int) -> bool:
        """Return whether warps lie over the columns of products that are made of each other."""
        if self.chained is None:
            return False
        return lies_across(self.chained.results[0].type.shape, cuda_architecture, num_warps)

    @functools.cached_property
    def exchange(self) -> TcmTile | None:
        """The largest tile whose elements threads of a GPU exchange outside of loops."""
        tiles = (tile for function in self.functions for tile in _exchanged(function))
        return max(tiles, key=lambda tile: tile.total_bytes, default=None)

    @functools.cached_property
    def registers(self) -> RegisterUse:
        """What lies in registers of a GPU's threads."""
        functions = map(register_use, self.functions)
        return max(functions, key=lambda use: use.live_bytes, default=NO_REGISTERS)

    @functools.cached_property
    def staged_bytes(self) -> int:
        """The most bytes of them on any PE; every launch asks."""
        return sum(tile.total_bytes for tile in self.staged)

    @functools.cached_property
    def most_shared_bytes(self) -> int:
        """No machine has more of them in shared memory."""
        held = self.staged_bytes + sum(tile.total_bytes for tile in self.operands)
        held += 0 if self.chained is None else tile_bytes(self.chained.operands[0].type)
        return max(held, 0 if self.exchange is None else self.exchange.total_bytes)

    def loads(self, cuda_architecture: int | None, num_warps: int) -> tuple[TcmTile, ...]:
        """Return what lies in shared memory on such a PE while loops run.

        Without an architecture, the loads that are issued ahead. On GPUs also operands of products
        that are not: they are loaded once, or computed. Where matrix units take operands from
        registers a load has a buffer less: the one that is consumed is free by the time that the
        next load is issued.
        Source: Triton's pipeliner gives a load as many buffers as there are stages from it to its
        use, ``num_stages - 1``, and one more where the unit reads shared memory itself.
        """
        if cuda_architecture is None:
            return self.staged
        staged = (
            tile
            if matrix_unit(cuda_architecture, num_warps, tile.rows) is MatrixUnit.SHARED
            else replace(tile, copies=max(tile.copies - 1, 1))
            for tile in self.staged
            # Of a product's loop that is not pipelined, they are operands.
            if tile.copies > 1 or not tile.rows
        )
        return (*staged, *self.operands, *self._crossing(cuda_architecture, num_warps))

    def block_tiles(self, cuda_architecture: int, num_warps: int) -> tuple[TcmTile, ...]:
        """Return what takes the most of a block's shared memory at a time.

        That is :meth:`loads`, or what threads exchange a tile by after the loops, in their place.
        """
        loads = self.loads(cuda_architecture, num_warps)
        held = sum(tile.total_bytes for tile in loads)
        if self.exchange is not None and self.exchange.total_bytes > held:
            return (self.exchange,)
        return loads

    def shared_tiles(self, cuda_architecture: int | None, num_warps: int) -> tuple[TcmTile, ...]:
        """Return what of these a PE has in its shared memory, if it says how much that is."""
        if cuda_architecture is None:
            return self.staged
        return self.block_tiles(cuda_architecture, num_warps)

    def shared_bytes(self, cuda_architecture: int | None, num_warps: int) -> int:
        """Return what of these a GPU has in shared memory, the rest being in registers.

        Where no tile is there: the scratch by which the lanes of the largest tile exchange their
        elements, in parts of at most ``_SCRATCH_BYTES``.
        """
        tiles = self.shared_tiles(cuda_architecture, num_warps)
        held = sum(tile.total_bytes for tile in tiles)
        return held or min(self.total_bytes, _SCRATCH_BYTES)


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
    functions = tuple(module.functions.values())
    for function in functions:
        staged += _staged(function, num_stages) + _allocated(function)
        tiles += _accumulators(function)
        other += _others(function)
    tiles += staged
    if other:
        tiles.append(max(other, key=lambda tile: tile.total_bytes))
    tiles.sort(key=lambda tile: -tile.total_bytes)
    total_bytes = sum(tile.total_bytes for tile in tiles)
    return TcmUse(total_bytes, tuple(tiles), tuple(staged), num_stages, functions)


def _staged(function: Function, num_stages: int) -> list[TcmTile]:
    """Return the loads that are issued ahead in the loops of which the most are live at once."""
    ops: list[tuple[Op, TcmTile]] = []
    for loop in function.body.walk():
        if loop.name != "scf.for":
            continue
        stages = buffered_stages(loop, num_stages_of(loop, num_stages))
        rows = [dot.results[0].type.shape[-2] for dot in loop.regions[0].walk() if dot.name in DOTS]
        ops += [
            (loop, replace(_tile(load, result, "load", stages), rows=min(rows, default=0)))
            for load in pipelined_loads(loop)
            for result in load.results
            if tile_bytes(result.type) and result.type.shape
        ]
    if len({loop for loop, _ in ops}) <= 1 or not is_structured(function):
        return [tile for _, tile in ops]
    live = LiveTiles(function)
    return most_at_once((tile, tile.total_bytes, live.span(loop)) for loop, tile in ops)


def _allocated(function: Function) -> list[TcmTile]:
    """Return the buffers that the kernel allocates itself, of which the most are live at once."""
    values = [
        op.results[0] for op in function.body.walk() if op.name == "ttg.local_alloc" and op.results
    ]
    if not values:
        return []
    makers = {op.results[0]: op for op in function.body.walk() if op.results}
    if not is_structured(function):
        return [_tile(makers[value], value, "buffer") for value in values]
    held = [
        (_tile(makers[value], value, "buffer"), size, span)
        for value, size, span in LiveTiles(function).places(values)
    ]
    return most_at_once(held)


def _accumulators(function: Function) -> list[TcmTile]:
    dots = [op for op in function.body.walk() if op.name in DOTS]
    if len(dots) <= 1 or not is_structured(function):
        return [_tile(op, op.results[0], "accumulator") for op in dots]
    held = [
        (_tile(op, op.results[0], "accumulator"), span)
        for op, span in LiveTiles(function).accumulators()
    ]
    return most_at_once((tile, tile.total_bytes, span) for tile, span in held)


def _operands(function: Function, num_stages: int) -> list[TcmTile]:
    """Return the operands of products that are in shared memory, and are not issued ahead.

    That is what is loaded, and a second operand that is computed: a first one that is computed
    goes to the matrix unit from registers. Those that are live at once have places of their own.
    """
    makers = {result: op for op in function.body.walk() for result in op.results}
    staged = _issued_ahead(function, num_stages)
    tcm_tiles: dict[Value, TcmTile] = {}
    for dot in function.body.walk():
        if dot.name not in DOTS:
            continue
        for place, operand in enumerate(dot.operands[:2]):
            value = _behind_views(operand, makers)
            maker = makers.get(value)
            if maker is None or maker in staged or maker.name == "arith.constant":
                continue
            if maker.name == "tt.load" or (place == 1 and maker.name.startswith(_IN_PLACE)):
                tcm_tiles[value] = _tile(maker, value, "operand")
    if len(tcm_tiles) <= 1 or not is_structured(function):
        return list(tcm_tiles.values())
    live = LiveTiles(function)
    return most_at_once(
        (tile, tile.total_bytes, live.seen(value, _VIEWS)) for value, tile in tcm_tiles.items()
    )


def _exchanged(function: Function) -> list[TcmTile]:
    """Return the tiles that threads exchange outside of loops, with what they take at a time.

    A product that is stored is laid out anew, row by row; so is a tile that is transposed.
    """
    makers = {result: op for op in function.body.walk() for result in op.results}
    fed = {
        _behind_views(operand, makers)
        for op in function.body.walk()
        if op.name in DOTS
        for operand in op.operands[:2]
    }
    tcm_tiles = []
    for op in function.body.walk():
        value: Value | None = None
        if op.name == "tt.store" and len(op.operands) > 1:
            value = op.operands[1] if _is_of_product(op.operands[1], makers) else None
        elif op.name == "tt.trans" and _behind_views(op.results[0], makers) not in fed:
            value = op.results[0]
        if value is not None and value.type.shape and value.type.dtype is not None:
            tile = _tile(op, value, "exchange")
            tcm_tiles.append(replace(tile, size_bytes=min(tile.size_bytes, _EXCHANGE_BYTES)))
    return tcm_tiles


def _behind_views(value: Value, makers: dict[Value, Op]) -> Value:
    while (maker := makers.get(value)) is not None and maker.name in _VIEWS:
        value = maker.operands[0]
    return value


def _is_of_product(value: Value, makers: dict[Value, Op]) -> bool:
    """Return whether a value is a product's, through operations on single elements and a loop."""
    seen: set[Value] = set()
    pending = [value]
    while pending:
        value = pending.pop()
        maker = makers.get(value)
        if maker is None or value in seen:
            continue
        seen.add(value)
        if maker.name in DOTS:
            return True
        if maker.name == "scf.for" and maker.regions[0].entry.ops:
            index = maker.results.index(value)
            pending.append(maker.regions[0].entry.ops[-1].operands[index])
        elif maker.name.startswith(_IN_PLACE):
            pending += [
                operand for operand in maker.operands if operand.type.shape == value.type.shape
            ]
    return False


def _issued_ahead(function: Function, num_stages: int = 2) -> set[Op]:
    return {
        load
        for loop in function.body.walk()
        if loop.name == "scf.for" and num_stages_of(loop, num_stages) > 1
        for load in pipelined_loads(loop)
    }


def _others(function: Function) -> list[TcmTile]:
    staged = _issued_ahead(function)
    tcm_tiles = []
    for op in function.body.walk():
        if op in staged or op.name in DOTS or op.name == "arith.constant" or op.regions:
            continue
        for result in op.results:
            is_data = result.type.is_float or op.name == "tt.load"
            if is_data and tile_bytes(result.type) and result.type.shape:
                tcm_tiles.append(_tile(op, result, op.name))
    return tcm_tiles


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
