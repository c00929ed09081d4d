"""Possible values of addresses and masks that are data, in one iteration (docs/model/cache.md).

What phase 1 knows is computed. For what was loaded, numbers stand in: one for each address that
it was loaded from, far from all others and no multiple of anything. So rows that are named by data
lie apart, what is added to them stays as near as it is, and what is loaded twice is the same.
A comparison with such a number says nothing: masks made of it are taken as on, and bounds of it
(``minimum``, ``where``) as not reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from kernbench.commands import (
    PROGRAM,
    IndexTile,
    MaskTile,
    Param,
    Predicate,
    Separable,
    Splat,
    axis_of,
    is_axis,
)
from kernbench.dtypes import Array, DType
from kernbench.kernel_ir import BINARY, BOOLEAN_BINARY, compare_arrays, elementwise
from kernbench.kernel_time.costs.fingerprints import mixed
from kernbench.kernel_time.program.origins import Loaded, Made, Part, in_order

Shape = tuple[int, ...]

_STAND_IN_BITS = 28
"""The width of numbers that stand in for loaded ones: products with strides stay below 2**63."""
_ROW_BITS = 12
_PARAMETER = 1 << 48
"""Further apart than the addresses of a tensor."""


@dataclass(frozen=True, slots=True)
class Guess:
    """An array with as many axes as the tile has, of length 1 where nothing varies."""

    array: Array
    is_loaded: bool
    """Whether it follows from numbers that stand in for others."""


class Numbers:
    """The numbers of parts, at one program's position and one iteration of the loops around.

    ``loaded`` are numbers of loads that nothing stands in for, by the id of the load.
    """

    def __init__(
        self, program: int, iteration: Mapping[int, int], loaded: Mapping[int, int] | None = None
    ) -> None:
        self._program, self._iteration = program, iteration
        self._given = loaded or {}
        self._found: dict[int, Guess] = {}

    def known(self, value: Separable | Predicate, rank: int) -> Array:
        """Return the numbers or truth values of a tensor with ``rank`` axes."""
        is_sum = isinstance(value, Separable)
        first = value.const if isinstance(value, Separable) else True
        total: Array = np.full((1,) * rank, first, dtype=np.int64 if is_sum else np.bool_)
        for dims, array in value.terms.items():
            picked = array[tuple(self._index(d, n) for d, n in zip(dims, array.shape, strict=True))]
            shape = [1] * rank
            if dims and is_axis(dims[-1]):
                shape[axis_of(dims[-1])] = len(picked)
            picked = picked.reshape(shape)
            total = total + picked if is_sum else total & picked
        return total

    def _index(self, dim: int, length: int) -> int | slice:
        if is_axis(dim):
            return slice(None)
        at = self._program if dim == PROGRAM else self._iteration.get(dim, 0)
        return min(at, length - 1)

    def of(self, part: Part) -> Guess:
        """Return a part's numbers."""
        if id(part) not in self._found:
            with np.errstate(all="ignore"):
                for loaded in in_order(part):
                    if id(loaded) not in self._found:
                        self._found[id(loaded)] = self._guess(loaded)
        return self._found[id(part)]

    def _guess(self, part: Part) -> Guess:
        if isinstance(part, IndexTile | MaskTile):
            return Guess(self.known(part.values, len(part.shape)), False)
        if isinstance(part, Splat):
            kind = {bool: np.bool_, int: np.int64}.get(type(part.value), np.float64)
            return Guess(np.full((1,) * len(part.shape), part.value, kind), False)
        if isinstance(part, Loaded):
            return self._loaded(part)
        if isinstance(part, Made):
            return self._made(part)
        assert isinstance(part, Param)
        return _stand_in(np.full((1,) * len(part.shape), part.index), part.dtype)

    def _loaded(self, part: Loaded) -> Guess:
        rank = len(part.access.shape)
        if id(part) in self._given:
            return Guess(np.full((1,) * rank, self._given[id(part)]), True)
        addresses = self.known(part.access.offset, rank) + part.access.param * _PARAMETER
        if part.gather is not None:
            addresses = addresses + self.of(part.gather).array
        guess = _stand_in(addresses, part.access.dtype)
        known = isinstance(part.mask, Predicate)
        active = self.known(part.mask, rank) if known else self.of(part.mask).array  # type: ignore[arg-type]
        if active.all():
            return guess
        other = Guess(np.zeros((1,) * rank), False) if part.other is None else self.of(part.other)
        chosen = np.where(active, guess.array, other.array.astype(guess.array.dtype))
        return Guess(chosen, bool(active.any()))

    def _made(self, part: Made) -> Guess:
        inputs = [self.of(loaded) for loaded in part.inputs]
        moved = _MOVES.get(part.op)
        if moved is not None:
            arrays = [guess.array for guess in inputs]
            is_loaded = any(guess.is_loaded for guess in inputs)
            return Guess(moved(part, arrays), is_loaded)
        computed = _computed(part, inputs)
        if computed is not None:
            return computed
        rank = len(part.shape)
        if inputs and part.op in _BY_ELEMENT and all(guess.array.ndim == rank for guess in inputs):
            total: Array = np.zeros((1,) * rank, dtype=np.int64)
            for guess in inputs:
                total = mixed(total).view(np.int64) + guess.array.astype(np.int64)
            return _stand_in(total, part.dtype)
        count = int(np.prod(part.shape, dtype=np.int64))
        computed = _stand_in(np.arange(count).reshape(part.shape) + (part.number << 32), part.dtype)
        if part.op or part.dtype.is_floating_point or part.dtype.bits == 1:
            return computed
        # An address of which no more is known is that of a row.
        return Guess(computed.array << _ROW_BITS, True)


def _stand_in(addresses: Array, dtype: DType) -> Guess:
    """Return the numbers assumed for the data at the addresses."""
    if dtype.bits == 1:
        return Guess(np.ones_like(addresses, dtype=np.bool_), True)
    bits = min(_STAND_IN_BITS, dtype.bits - 1)
    numbers = (mixed(addresses.astype(np.int64)) >> np.uint64(64 - bits)).view(np.int64)
    return Guess(numbers.astype(np.float64) if dtype.is_floating_point else numbers, True)


# -- operations -------------------------------------------------------------------------------


def _whole(array: Array, shape: Shape) -> Array:
    return np.broadcast_to(array, shape)


_MOVES: dict[str, Callable[[Made, list[Array]], Array]] = {
    # A number that was reduced from others is taken for one of them.
    "tt.splat": lambda part, a: a[0].reshape(-1)[:1].reshape((1,) * len(part.shape)),
    "tt.unsplat": lambda part, a: a[0].reshape(-1)[0].reshape(()),
    "tt.broadcast": lambda part, a: a[0],
    "tt.expand_dims": lambda part, a: np.expand_dims(a[0], int(part.attrs["axis"])),
    "tt.trans": lambda part, a: a[0].transpose(part.attrs["order"]),
    "tt.reshape": lambda part, a: _whole(a[0], part.inputs[0].shape).reshape(part.shape),
    "tt.view": lambda part, a: _whole(a[0], part.inputs[0].shape).reshape(part.shape),
    "tt.join": lambda part, a: np.stack([_whole(x, part.shape[:-1]) for x in a], axis=-1),
    "tt.cat": lambda part, a: np.concatenate(
        [_whole(x, loaded.shape) for x, loaded in zip(a, part.inputs, strict=True)]
    ),
    "tt.split": lambda part, a: _whole(a[0], part.inputs[0].shape)[..., part.attrs["index"]],
}
"""Operations that only move elements; ``a`` are their inputs' arrays."""

_CASTS = {"arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "arith.index_castui"}
_FLOATS: dict[str, Callable[..., Array]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.negf": np.negative,
    "arith.extf": np.asarray,
    "arith.truncf": np.asarray,
    "arith.sitofp": lambda a: a.astype(np.float64),
    "arith.uitofp": lambda a: a.astype(np.float64),
    "arith.fptosi": lambda a: np.nan_to_num(a).astype(np.int64),
    "arith.fptoui": lambda a: np.nan_to_num(a).astype(np.int64),
    "math.floor": np.floor,
    "math.ceil": np.ceil,
}
"""What indices are scaled by; rounded to no narrower type, for addresses hardly ever need it."""
_BOUNDS = {"arith.minsi", "arith.maxsi", "arith.minui", "arith.maxui"}
_BY_ELEMENT = {*BINARY, *_CASTS, *_FLOATS, "arith.cmpf", "arith.select", "arith.bitcast"}


def _computed(part: Made, inputs: list[Guess]) -> Guess | None:
    """Return the result of integer arithmetic, None of an operation that is not known here."""
    op, arrays = part.op, [guess.array for guess in inputs]
    is_loaded = any(guess.is_loaded for guess in inputs)
    if op in ("arith.cmpi", "arith.cmpf"):
        if is_loaded or op == "arith.cmpf":
            return Guess(np.ones((1,) * len(part.shape), dtype=np.bool_), is_loaded)
        bits = part.inputs[0].dtype.bits if hasattr(part.inputs[0], "dtype") else 1
        return Guess(compare_arrays(part.attrs["predicate"], arrays[0], arrays[1], bits), False)
    if op == "arith.select":
        return _selected(*inputs)
    if part.dtype.bits == 1 and op in BOOLEAN_BINARY and is_loaded:
        if op == "arith.andi":
            return Guess(arrays[0] & arrays[1], True)
        return Guess(np.ones((1,) * len(part.shape), dtype=np.bool_), True)
    if op in _BOUNDS and inputs[0].is_loaded != inputs[1].is_loaded:
        return inputs[0] if inputs[0].is_loaded else inputs[1]
    # Numbers that stand in for others are no reason to wrap around.
    bits = 64 if is_loaded and part.dtype.bits > 1 else part.dtype.bits
    if op in (BINARY if part.dtype.bits > 1 else BOOLEAN_BINARY):
        return Guess(elementwise(op, arrays[0], arrays[1], bits), is_loaded)
    if op in _CASTS:
        return Guess(_cast(part, arrays[0], is_loaded), is_loaded)
    if op in _FLOATS:
        return Guess(_FLOATS[op](*arrays), is_loaded)
    return None


def _selected(condition: Guess, a: Guess, b: Guess) -> Guess:
    if condition.is_loaded and not condition.array.all():
        # What is known of it counts; where that does not say no, it may be on.
        condition = Guess(condition.array, False)
    if condition.is_loaded:
        return a if a.is_loaded or not b.is_loaded else b
    return Guess(np.where(condition.array, a.array, b.array), a.is_loaded or b.is_loaded)


def _cast(part: Made, array: Array, is_loaded: bool) -> Array:
    if array.dtype == np.bool_:
        return array.astype(np.int64) * (-1 if part.op == "arith.extsi" else 1)
    if part.dtype.bits == 1:
        return np.asarray(array & 1 != 0)
    if is_loaded:
        return array
    if part.op == "arith.extui":
        source = getattr(part.inputs[0], "dtype", part.dtype)
        return array & ((1 << source.bits) - 1) if source.bits < 64 else array
    return elementwise("arith.addi", array, np.zeros((), dtype=np.int64), part.dtype.bits)
