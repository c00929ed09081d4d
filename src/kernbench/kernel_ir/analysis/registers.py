"""How many registers the threads of a GPU need for a program, as an estimate.

Tiles of data are held by all threads of a block together: each has its part of every tile that is
live, whatever the number of warps. What is counted: values that are loaded or computed, at the
point where most of them are live, each in place of what it is computed from where that ends there.
Not counted: what feeds a product from shared memory, masks, indices, and what is the same in many
elements (splats, broadcasts): compilers compute these where they need them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernbench.kernel_ir.analysis.layouts import reduced_bits, vectors_of_reductions
from kernbench.kernel_ir.analysis.live_tiles import (
    DOTS,
    LOOPS,
    LiveSpan,
    LiveTiles,
    is_structured,
    most_at_once,
    pipelined_loads,
)
from kernbench.kernel_ir.text.ir import Function, Op, Value

_FREE = (
    *("arith.constant", "tt.splat", "tt.expand_dims", "tt.broadcast", "tt.trans", "tt.reshape"),
    # Modifiers of operands in the instruction that reads them.
    *("math.absf", "arith.negf"),
)
_NARROWING = ("arith.truncf", "tt.fp_to_fp")
_VECTOR_BYTES, _MMA_ROWS = 16, 16
_BASE = 30
"""Registers of a thread for its place, sizes and strides: 20 to 50 in kernels of all kinds."""
_PER_POINTER = 3
"""Registers that a pointer which a loop carries takes: 64 bits and its mask."""


@dataclass(frozen=True, slots=True)
class RegisterUse:
    """What the threads of a program hold, all together."""

    live_bytes: int
    """Bytes of tiles of data, where the most are live."""
    pointers: int
    """Pointers that loops carry, one for every 16 bytes that are loaded."""
    unlooped_bytes: int = 0
    """Bytes of the largest such tile, where there is no loop; 0 where there is one.

    Three quarters of them where what is computed and stored has less than half: it takes the place
    of what it is computed from, as it is in a copy. Source: ptxas of CUDA 13.0 for 8.0 on 128 x 256
    float32 with four warps: 255 registers for copies and for what is stored as int8, 32 for float16
    and float32 (``tests/kernel_ir/analysis/test_registers.py``).
    """

    fragments: tuple[tuple[int, int], ...] = ()
    """Rows and bytes of first factors that a loop uses in every iteration."""
    summed: tuple[SummedTile, ...] = ()
    """Live tiles of what smaller ones repeat, and that nothing but a reduction reads."""
    multiplies: bool = False
    """Whether it has a product."""
    computed_factors: int = 0
    """Bytes of live first factors that are computed, beside what they are computed of."""
    second_factor: int = 0
    """Bytes of 16 rows of the largest second factor, which each warp that multiplies loads."""

    def per_thread(self, num_threads: int, num_warps: int = 0) -> int:
        """Return the registers that each thread of a program would like to have.

        Of ``num_warps`` that multiply from registers, each keeps its rows of such factors there; 0
        where the matrix unit reads shared memory.
        """
        live = self.live_bytes - sum(
            summed_tile.never_whole(num_threads) for summed_tile in self.summed
        )
        tiles = -(-live // (4 * num_threads))
        pointers = _PER_POINTER * -(-self.pointers // num_threads)
        if not num_warps:
            return _BASE + tiles + pointers
        kept = self._kept(num_threads, num_warps)
        return _BASE + tiles + pointers + kept + self._ahead(num_threads, num_warps)

    def spared(self, num_threads: int, num_warps: int = 0, *, across: bool = False) -> int:
        """Return how many of these registers a compiler does without before it spills.

        Units that read shared memory take a computed factor from where it is computed, piece by
        piece; of other factors, each of ``num_warps`` loads the next piece as early as it has room.
        Warps that lie ``across`` have no rows of their own, and load even factors that stay.
        """
        if num_warps:
            kept = self._kept(num_threads, num_warps) if across else 0
            return self._ahead(num_threads, num_warps) + kept
        return self.computed_factors // (4 * num_threads)

    def _kept(self, num_threads: int, num_warps: int) -> int:
        return sum(
            size * num_warps // (4 * num_threads * max(min(num_warps, rows // _MMA_ROWS), 1))
            for rows, size in self.fragments
        )

    def _ahead(self, num_threads: int, num_warps: int) -> int:
        return self.second_factor * num_warps // (4 * num_threads)

    def of_largest_tile(self, num_threads: int) -> int:
        """Return the registers of a thread's part of the largest tile, 0 where there is a loop."""
        return -(-self.unlooped_bytes // (4 * num_threads))


@dataclass(frozen=True, slots=True)
class SummedTile:
    """A tile of what smaller ones repeat, as a product is, for a reduction alone."""

    shape: tuple[int, ...]
    axis: int
    vector: int
    """How many elements each thread has in a row."""
    itemsize: int

    def never_whole(self, num_threads: int) -> int:
        """Return the bytes that no register holds, as each thread adds up its part at once."""
        size = math.prod(self.shape) * self.itemsize
        within, _, _ = reduced_bits(self.shape, self.axis, self.vector, num_threads, 1)
        return size - (size >> within)


NO_REGISTERS = RegisterUse(0, 0)


def register_use(function: Function) -> RegisterUse:
    """Return what a function holds in registers."""
    held = _held(function)
    loops = any(op.name in LOOPS for op in function.body.walk()) or not is_structured(function)
    largest = 0 if loops else max(map(_bytes, held), default=0)
    if 2 * _stored_bytes(function) < largest:
        largest = 3 * largest // 4
    live, summed, factors = _live(function, held)
    multiplies = any(op.name in DOTS for op in function.body.walk())
    fragments = tuple(_fragments(function))
    second = max(map(_piece, function.body.walk()), default=0) if fragments else 0
    return RegisterUse(
        *(live, _pointers(function), largest, fragments, summed, multiplies, factors, second)
    )


def _held(function: Function) -> list[Value]:
    """Return the values that lie in registers while they are live."""
    readers: dict[Value, list[Op]] = {}
    for op in function.body.walk():
        for operand in op.operands:
            readers.setdefault(operand, []).append(op)
    staged = {
        load
        for loop in function.body.walk()
        if loop.name == "scf.for"
        for load in pipelined_loads(loop)
    }
    computed, factors = set(_computed_integers(function)), _computed_factors(function)
    return [
        result
        for op in function.body.walk()
        if op.name not in _FREE and op not in staged and not op.regions
        for result in op.results
        if result.type.shape
        and (result.type.is_float or op.name == "tt.load" or result in computed)
        and not (_only_multiplied(result, readers) and result not in factors)
        # What only takes less room than a value that nothing else reads is in that one's place.
        and (result in factors or not (op.name in _NARROWING and len(readers[op.operands[0]]) == 1))
    ]


def _computed_factors(function: Function) -> set[Value]:
    """Return the first factors of products that a loop makes narrower of what it computes."""
    narrowed = {
        op.results[0]
        for loop in function.body.walk()
        if loop.name in LOOPS
        for op in loop.regions[-1].walk()
        if op.name in _NARROWING
    }
    return {op.operands[0] for op in function.body.walk() if op.name in DOTS} & narrowed


def _piece(op: Op) -> int:
    """Return the bytes of as many rows of a product's second factor as one instruction takes."""
    if op.name not in DOTS:
        return 0
    factor = op.operands[1]
    return _bytes(factor) * _MMA_ROWS // factor.type.shape[-2]


def _computed_integers(function: Function) -> Iterator[Value]:
    """Yield integers that are computed of what is loaded, and are no indices."""
    data, indices = set[Value](), set[Value]()
    for op in reversed(list(function.body.walk())):
        if op.name == "tt.addptr":
            indices.update(op.operands[1:])
        elif op.name != "tt.load" and not indices.isdisjoint(op.results):
            indices.update(op.operands)
    for op in function.body.walk():
        if op.name == "tt.load" or not data.isdisjoint(op.operands):
            data.update(op.results)
            yield from (value for value in op.results if value.type.is_int and value not in indices)


def _fragments(function: Function) -> Iterator[tuple[int, int]]:
    """Yield rows and bytes of products' first factors that do not change in the innermost loop."""
    seen: set[Value] = set()
    for loop in function.body.walk():
        body = list(loop.regions[0].walk()) if loop.name in LOOPS else []
        if any(op.name in LOOPS for op in body):
            continue
        values = {result for op in body for result in op.results}
        values |= {arg for region in loop.regions for arg in region.entry.args} if body else set()
        for op in body:
            factor = op.operands[0] if op.name in DOTS else None
            if factor is not None and factor not in values and factor not in seen:
                seen.add(factor)
                yield factor.type.shape[-2], _bytes(factor)


def _stored_bytes(function: Function) -> int:
    """Return the bytes of the largest tile that is computed and stored."""
    loaded = {value for op in function.body.walk() if op.name == "tt.load" for value in op.results}
    stored = (op.operands[1] for op in function.body.walk() if op.name == "tt.store")
    return max((_bytes(value) for value in stored if value not in loaded), default=0)


def _live(function: Function, held: Sequence[Value]) -> tuple[int, tuple[SummedTile, ...], int]:
    """Return the bytes where most are live.

    And which of these tiles only a reduction reads, and the bytes of computed factors among them.
    """
    if not is_structured(function):
        return max((_bytes(value) for value in held), default=0), (), 0
    factors = _computed_factors(function)
    tiles = LiveTiles(function)
    # Compilers interleave operations on elements: what these read is never whole, but a product is.
    whole = [tiles.span(op).first for op in function.body.walk() if not _is_elementwise(op)]
    products = {tiles.span(op).first for op in function.body.walk() if op.name in DOTS}
    spans = [
        (value, size, span)
        for value, size, span in tiles.places(held)
        if span.first in products
        or bisect_right(whole, span.first) < bisect_right(whole, span.last)
    ]
    # What an operation computes takes the place of what it reads for the last time, but for a
    # factor, which lies otherwise.
    live = most_at_once(
        (value, size, LiveSpan(min(span.first + (value not in factors), span.last), span.last))
        for value, size, span in spans
    )
    sizes = {value: size for value, size, _ in spans}
    summed = tuple(
        tile
        for value, tile in _summed(function).items()
        if any(tiles.share(value, item) for item in live)
    )
    computed = sum(sizes[value] for value in live if value in factors)
    return sum(sizes[value] for value in live), summed, computed


def _summed(function: Function) -> dict[Value, SummedTile]:
    """Return the tiles that are computed of smaller ones and that one reduction alone reads."""
    uses = Counter(value for op in function.body.walk() for value in op.operands)
    repeated: set[Value] = set()
    computed: set[Value] = set()
    for op in function.body.walk():
        if op.name == "tt.broadcast":
            repeated.update(op.results)
        elif _is_elementwise(op) and not (repeated | computed).isdisjoint(op.operands):
            computed.update(op.results)
    summed = {}
    for op, vector in vectors_of_reductions(function.body).items():
        axis = op.attrs.get("axis")
        for value in op.operands:
            dtype = value.type.dtype
            if value in computed and uses[value] == 1 and dtype is not None and vector:
                assert isinstance(axis, int)
                summed[value] = SummedTile(value.type.shape, axis, vector, dtype.itemsize)
    return summed


def _is_elementwise(op: Op) -> bool:
    return op.name in (*_FREE, *_NARROWING) or op.name.startswith(("arith.", "math."))


def _only_multiplied(value: Value, readers: dict[Value, list[Op]]) -> bool:
    """Return whether a value only feeds products, and so lies in shared memory."""
    return all(
        (op.name in DOTS and value in op.operands[:2])
        or (op.name in _FREE and _only_multiplied(op.results[0], readers))
        for op in readers.get(value, ())
    ) and bool(readers.get(value))


def _pointers(function: Function) -> int:
    most = 0
    for loop in function.body.walk():
        if loop.name == "scf.for":
            types = [arg.type for arg in loop.regions[0].entry.args]
            carried = sum(
                math.prod(item.shape) * item.dtype.itemsize
                for item in types
                if item.is_pointer and item.shape and item.dtype is not None
            )
            most = max(most, carried // _VECTOR_BYTES)
    return most


def _bytes(value: Value) -> int:
    dtype = value.type.dtype
    return 0 if dtype is None else math.prod(value.type.shape) * dtype.itemsize
