"""Integer and boolean tensors of all programs at once, kept as sums of small terms.

A kernel's addresses are sums of parts that each depend on little: one number per program, one
vector per tensor axis, one number per loop iteration. :class:`Separable` keeps them that way, so
that a tile is a strided copy and not an element gather, and so that one object stands for every
program of a grid and every iteration of a rolled loop.

A *dim* is an integer that names what a term varies over: :data:`PROGRAM`, a loop
(:func:`loop_dim`) or a tensor axis (:func:`axis_dim`). The key of a term is its dims in rising
order, which is also the order of the axes of its array.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np

from kernbench.commands.rows import RowTable
from kernbench.dtypes import Array

Dims = tuple[int, ...]
Shape = Dims

PROGRAM = 0
_FIRST_AXIS = 1 << 20
_UNWRAPPED = 1 << 62
# As ``array.min()``, without its layer of Python.
_least, _greatest = np.minimum.reduce, np.maximum.reduce


def loop_dim(loop_id: int) -> int:
    """Return the dim of the loop numbered ``loop_id`` (from 0, unique within a trace)."""
    return 1 + loop_id


def axis_dim(axis: int) -> int:
    """Return the dim of tensor axis ``axis``."""
    return _FIRST_AXIS + axis


def is_axis(dim: int) -> bool:
    return dim >= _FIRST_AXIS


def axis_of(dim: int) -> int:
    """Return the tensor axis of a dim for which :func:`is_axis` holds."""
    return dim - _FIRST_AXIS


def is_loop(dim: int) -> bool:
    return 0 < dim < _FIRST_AXIS


@lru_cache(maxsize=4096)
def num_axes(dims: Dims) -> int:
    """Return how many of the dims are tensor axes."""
    return sum(dim >= _FIRST_AXIS for dim in dims)


class NotSeparableError(Exception):
    """The result would vary over two tensor axes at once; the caller makes it data instead."""


def aligned(array: Array, dims: Dims, target: Dims) -> Array:
    """View ``array`` (axes ``dims``) with one axis per dim of ``target``, length 1 where absent."""
    if dims == target:
        return array
    index = tuple(slice(None) if dim in dims else None for dim in target)
    return array[index]


def union(*dims: Dims) -> Dims:
    return tuple(sorted(set().union(*dims)))


def _renamed(dims: Dims, array: Array, axes: Mapping[int, int]) -> tuple[Dims, Array]:
    """Return a term whose tensor axis ``i`` has become ``axes[i]``, its dims in rising order."""
    renamed = [axis_dim(axes[axis_of(dim)]) if is_axis(dim) else dim for dim in dims]
    if renamed == sorted(renamed):
        return tuple(renamed), array
    order = sorted(range(len(renamed)), key=renamed.__getitem__)
    return tuple(renamed[i] for i in order), array.transpose(order)


class Separable:
    """An integer tensor: ``const`` plus terms, each an ``int64`` array over its dims.

    ``shape`` is the tensor's shape, ``()`` for a scalar. Axes without a term are constant along
    that axis. Arrays are never written to after they were put into a term. One over an axis and
    something else may be :class:`RowTable`, which is used like an array.
    """

    __slots__ = ("_bounds", "const", "shape", "terms")

    def __init__(
        self, shape: Shape, const: int = 0, terms: Mapping[Dims, Array] | None = None
    ) -> None:
        self.shape = shape
        self.const = const
        self.terms: dict[Dims, Array] = dict(terms) if terms else {}
        self._bounds: tuple[int, int] | None = None

    def __repr__(self) -> str:
        parts = [str(self.const), *(f"{dims}:{arr.shape}" for dims, arr in self.terms.items())]
        return f"Separable{self.shape}({' + '.join(parts)})"

    @property
    def dims(self) -> Dims:
        """Every dim that some term varies over."""
        return union(*self.terms)

    @property
    def is_uniform(self) -> bool:
        """Whether this is one number for all programs, iterations and elements."""
        return not self.terms

    def __add__(self, other: Separable) -> Separable:
        if not other.terms:
            moved = Separable(self.shape or other.shape, self.const + other.const, self.terms)
            if self._bounds is not None:
                low, high = self._bounds
                moved._bounds = low + other.const, high + other.const
            return moved
        terms = dict(self.terms)
        for dims, array in other.terms.items():
            mine = terms.get(dims)
            terms[dims] = array if mine is None else mine + array
        return fold_terms(self.shape or other.shape, self.const + other.const, terms)

    def __neg__(self) -> Separable:
        return Separable(self.shape, -self.const, {d: -a for d, a in self.terms.items()})

    def __sub__(self, other: Separable) -> Separable:
        return self + (-other)

    def __mul__(self, other: Separable) -> Separable:
        """Distribute the product over the terms.

        Raises:
            NotSeparableError: A product term would vary over two tensor axes.
        """
        if self.is_uniform:
            self, other = other, self
        if other.is_uniform:
            return self._scaled(other.const, self.shape or other.shape)
        factor = other.const
        terms = {dims: array * factor for dims, array in self.terms.items()} if factor else {}
        const = self.const * factor
        for dims, array in other.terms.items():
            if self.const:
                terms[dims] = (
                    terms[dims] + array * self.const if dims in terms else array * self.const
                )
            for mine, mine_array in self.terms.items():
                both = union(mine, dims)
                if num_axes(both) > 1:
                    raise NotSeparableError
                product = aligned(mine_array, mine, both) * aligned(array, dims, both)
                terms[both] = terms[both] + product if both in terms else product
        return fold_terms(self.shape or other.shape, const, terms)

    def _scaled(self, factor: int, shape: Shape) -> Separable:
        if not factor:
            return Separable(shape)
        terms = self.terms
        if factor != 1:
            terms = {dims: array * factor for dims, array in terms.items()}
        scaled = Separable(shape, self.const * factor, terms)
        if self._bounds is not None:
            low, high = sorted(bound * factor for bound in self._bounds)
            # Numbers of 64 bits wrap around, their bounds do not.
            if low > -_UNWRAPPED and high < _UNWRAPPED:
                scaled._bounds = (low, high)
        return scaled

    def with_shape(self, shape: Shape, axes: Mapping[int, int] | None = None) -> Separable:
        """Return the same numbers as a tensor of ``shape``, axis ``i`` becoming ``axes[i]``.

        Serves splat, broadcast, expand_dims and trans. An axis of length 1 may become longer.
        """
        if axes is None:
            same = Separable(shape, self.const, self.terms)
            same._bounds = self._bounds
            return same
        terms: dict[Dims, Array] = {}
        for dims, array in self.terms.items():
            dims, array = _renamed(dims, array, axes)
            terms[dims] = terms[dims] + array if dims in terms else array
        return fold_terms(shape, self.const, terms)

    def at(self, dim: int, index: int) -> Separable:
        """Return the tensor with ``dim`` (a loop or the programs) fixed at ``index``."""
        result = Separable(self.shape, self.const)
        for dims, array in self.terms.items():
            if dim in dims:
                where = dims.index(dim)
                array = array.take(min(index, array.shape[where] - 1), axis=where)
                dims = dims[:where] + dims[where + 1 :]
            result = result + Separable(self.shape, 0, {dims: array})
        return result

    def take_programs(self, positions: Array) -> Separable:
        """Return the tensor of the programs at ``positions`` (indices into the program dim)."""
        terms = {
            dims: array[positions] if dims and dims[0] == PROGRAM else array
            for dims, array in self.terms.items()
        }
        return Separable(self.shape, self.const, terms)

    def dense(self, target: Dims) -> Array:
        """Return one ``int64`` array with an axis per dim of ``target`` (length 1 where constant).

        ``target`` must hold every dim of the tensor. The array is not to be written to.
        """
        if len(self.terms) == 1 and not self.const:
            ((dims, array),) = self.terms.items()
            return aligned(array, dims, target)
        total: Array = np.full((1,) * len(target), self.const, dtype=np.int64)
        for dims, array in self.terms.items():
            total = total + aligned(array, dims, target)
        return total

    def trimmed(self) -> Separable:
        """Return the same numbers with terms that hold one number folded into ``const``."""
        kept: dict[Dims, Array] = {}
        const = self.const
        for dims, array in self.terms.items():
            first = array[(0,) * array.ndim]
            if array.size == 1 or (array[(-1,) * array.ndim] == first and (array == first).all()):
                const += int(first)
            else:
                kept[dims] = array
        return Separable(self.shape, const, kept)

    def equals(self, other: Separable) -> bool:
        """Whether the numbers are certainly the same; may miss it where terms differ in dims."""
        difference = self - other
        return all(not array.any() for array in difference.terms.values()) and not difference.const

    @property
    def num_elements(self) -> int:
        """The numbers that differ at most: those of :meth:`dense` over all its dims."""
        lengths: dict[int, int] = {}
        for dims, array in self.terms.items():
            lengths.update(zip(dims, array.shape, strict=True))
        return math.prod(lengths.values())

    def bounds(self) -> tuple[int, int]:
        """Return a lower and an upper bound of all elements; exact when terms are independent."""
        pair = self._bounds
        if pair is None:
            low = high = self.const
            for array in self.terms.values():
                if isinstance(array, RowTable):
                    lows, highs = self.bounds_of_programs()
                    low, high = int(lows.min()), int(highs.max())
                    break
                low += int(_least(array, axis=None))
                high += int(_greatest(array, axis=None))
            pair = self._bounds = (low, high)
        return pair

    def bounds_of_programs(self) -> tuple[Array, Array]:
        """Return the same of each program; one pair where no term varies over programs."""
        low: Array = np.full(1, self.const)
        high = low
        for dims, least, greatest in self._extremes():
            axes = tuple(range(int(dims[:1] == (PROGRAM,)), len(dims)))
            low, high = low + _least(least, axis=axes), high + _greatest(greatest, axis=axes)
        return low, high

    def bounded(self, low: int, high: int) -> Separable:
        """Note that no number lies outside of ``[low, high]``, and return the tensor."""
        least, greatest = self.bounds()
        self._bounds = (max(low, least), min(high, greatest))
        return self

    def _extremes(self) -> Iterator[tuple[Dims, Array, Array]]:
        """Yield bounds of terms with their dims, those together that vary over the dims of rows."""
        rest = dict(self.terms)
        for dims, array in self.terms.items():
            if not isinstance(array, RowTable) or dims not in rest:
                continue
            lead = dims[:-1]
            table, over = array.table, np.zeros((1,) * len(lead), dtype=np.int64)
            for item in [entry for entry in rest if set(entry) <= set(dims) and entry != dims]:
                if item == dims[-1:]:
                    table = table + rest.pop(item)
                elif set(item) <= set(lead):
                    over = over + aligned(rest.pop(item), item, lead)
            del rest[dims]
            least, greatest = (rows[array.index] for rows in (table.min(axis=1), table.max(axis=1)))
            yield lead, over + least, over + greatest
        for dims, array in rest.items():
            yield dims, array, array


class Predicate:
    """A boolean tensor: the conjunction of terms, each a ``bool`` array over its dims.

    No terms means true everywhere; false everywhere is one term over no dims, ``{(): False}``.
    ``shape`` as in :class:`Separable`.
    """

    __slots__ = ("shape", "terms")

    def __init__(self, shape: Shape, terms: Mapping[Dims, Array] | None = None) -> None:
        self.shape = shape
        self.terms: dict[Dims, Array] = dict(terms) if terms else {}

    def __repr__(self) -> str:
        parts = [f"{dims}:{arr.shape}" for dims, arr in self.terms.items()]
        return f"Predicate{self.shape}({' & '.join(parts) or 'true'})"

    @property
    def dims(self) -> Dims:
        return union(*self.terms)

    @property
    def is_true(self) -> bool:
        """Whether it holds everywhere (a term that is all true is dropped when it is made)."""
        return not self.terms

    @property
    def is_uniform(self) -> bool:
        """Whether this is one truth value for all programs, iterations and elements."""
        return not self.terms or () in self.terms

    def equals(self, other: Predicate) -> bool:
        """Whether the truth values are certainly the same."""
        return self.terms.keys() == other.terms.keys() and all(
            np.array_equal(array, other.terms[dims]) for dims, array in self.terms.items()
        )

    def __and__(self, other: Predicate) -> Predicate:
        terms = dict(self.terms)
        for dims, array in other.terms.items():
            terms[dims] = terms[dims] & array if dims in terms else array
        return conjunction(self.shape or other.shape, terms)

    def with_shape(self, shape: Shape, axes: Mapping[int, int] | None = None) -> Predicate:
        """Do as :meth:`Separable.with_shape`."""
        if axes is None:
            return Predicate(shape, self.terms)
        terms: dict[Dims, Array] = {}
        for dims, array in self.terms.items():
            dims, array = _renamed(dims, array, axes)
            terms[dims] = terms[dims] & array if dims in terms else array
        return conjunction(shape, terms)

    def at(self, dim: int, index: int) -> Predicate:
        """Do as :meth:`Separable.at`."""
        terms: dict[Dims, Array] = {}
        for dims, array in self.terms.items():
            if dim in dims:
                where = dims.index(dim)
                array = array.take(min(index, array.shape[where] - 1), axis=where)
                dims = dims[:where] + dims[where + 1 :]
            terms[dims] = terms[dims] & array if dims in terms else array
        return conjunction(self.shape, terms)

    def take_programs(self, positions: Array) -> Predicate:
        """Do as :meth:`Separable.take_programs`."""
        return conjunction(
            self.shape,
            {
                dims: array[positions] if dims and dims[0] == PROGRAM else array
                for dims, array in self.terms.items()
            },
        )

    def dense(self, target: Dims) -> Array:
        """Return one ``bool`` array with an axis per dim of ``target``, length 1 where constant."""
        total: Array = np.ones((1,) * len(target), dtype=np.bool_)
        for dims, array in self.terms.items():
            total = total & aligned(array, dims, target)
        return total


def uniform(value: int, shape: Shape = ()) -> Separable:
    """Return a tensor that is ``value`` everywhere."""
    return Separable(shape, int(value))


def programs(values: Array) -> Separable:
    """Return a scalar with one value per program."""
    return fold_terms((), 0, {(PROGRAM,): np.asarray(values, dtype=np.int64)})


def make_range(start: int, end: int) -> Separable:
    """Return ``tt.make_range``: a vector counting from ``start`` up to ``end``."""
    return fold_terms((end - start,), 0, {(axis_dim(0),): np.arange(start, end, dtype=np.int64)})


def loop_index(loop_id: int, start: int, step: int, trip_count: int) -> Separable:
    """Return a loop's induction variable as a scalar that varies over the loop's dim."""
    values = start + step * np.arange(trip_count, dtype=np.int64)
    return fold_terms((), 0, {(loop_dim(loop_id),): values})


def constant(value: bool, shape: Shape = ()) -> Predicate:
    """Return a predicate that is ``value`` everywhere."""
    return Predicate(shape, None if value else {(): np.zeros((), dtype=np.bool_)})


def fold_terms(shape: Shape, const: int, terms: dict[Dims, Array]) -> Separable:
    """Fold terms that hold a single number into the constant."""
    kept: dict[Dims, Array] = {}
    for dims, array in terms.items():
        # A term of one element varies over nothing.
        if array.size == 1:
            const += int(array.reshape(-1)[0])
        else:
            kept[dims] = array
    return Separable(shape, const, kept)


def conjunction(shape: Shape, terms: dict[Dims, Array]) -> Predicate:
    """Drop the terms that are true everywhere; one that is false everywhere stands for all."""
    kept = {dims: array for dims, array in terms.items() if not array.all()}
    if any(not array.any() for array in kept.values()):
        return constant(False, shape)
    return Predicate(shape, kept)
