"""Programs with different trip counts, evaluated at once (docs/model/kernels.md).

The loops are evaluated for the program that goes around them most often, over all programs. What
the others do are the first iterations of it; that this holds is seen to in three ways. Evaluation
itself refuses where a program's number of iterations enters what comes after the loop in a way that
has no closed form, where 32-bit numbers wrap around in iterations that may not exist, and where
what it decides depends on iterations. Terms over programs and iterations at once must stay small.
And the shortest and a middle path are evaluated by themselves and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from kernbench.commands import (
    PROGRAM,
    NotSeparableError,
    Predicate,
    ProgramGroup,
    Separable,
    SourceLine,
    Tile,
    field_names,
    is_loop,
    path_body,
    union,
)
from kernbench.dtypes import Array, DType
from kernbench.errors import NeedsDataError, UnsupportedOpError
from kernbench.kernel_ir.evaluation.evaluator import Evaluator, SplitPrograms, UnrollLoops

Begin = Callable[[Array], "Evaluator"]

_FEWEST_PATHS = 4
"""Below, evaluating each is as quick as this with its checks."""
_PROBED = 8
_MOST_ELEMENTS = 1 << 22
"""The most elements of one term over programs and iterations, or of one comparison of two
tensors."""


def evaluate_shared(
    begin: Begin, ints: Mapping[int, int], program_ids: Array, trips: Array
) -> tuple[Evaluator, ProgramGroup] | None:
    """Return one group for programs whose trip counts differ, None where each path needs its own.

    ``trips`` are the trip counts of the first loop in which they differ; ``begin`` makes an
    evaluator for some programs.

    Raises:
        SplitPrograms: The programs have to be split before any of them can share.
    """
    around = trips > 0
    if len(np.unique(trips[around])) < _FEWEST_PATHS:
        return None
    if not _is_small(begin, ints, program_ids[around], trips[around]):
        return None
    if not around.all():
        # Who does not go around the loop at all has other commands after it.
        raise SplitPrograms(around, may_share=True)
    return evaluate_together(begin, ints, program_ids)


def evaluate_together(
    begin: Begin, ints: Mapping[int, int], program_ids: Array
) -> tuple[Evaluator, ProgramGroup] | None:
    """Return one group for programs whose terms stay small, None where each path needs its own.

    Raises:
        SplitPrograms: The programs have to be split before any of them can share.
    """
    together = _together(begin(program_ids), ints, program_ids)
    if together is None:
        return None
    _, group = together
    if group.trips:
        paths = max(len(np.unique(counts)) for _, counts in group.trips)
        if paths < _FEWEST_PATHS or not _is_confirmed(begin, ints, group):
            return None
    return together


def _is_small(begin: Begin, ints: Mapping[int, int], program_ids: Array, trips: Array) -> bool:
    """Return whether terms over programs and iterations stay small, as far as few programs tell."""
    order = np.argsort(trips, kind="stable")
    chosen = np.unique(order[np.linspace(0, len(order) - 1, _PROBED).astype(np.int64)])
    while True:
        run = begin(program_ids[chosen])
        run.is_probe = True
        try:
            probe = _together(run, ints, program_ids[chosen])
        except SplitPrograms as split:
            _, where = np.unique(split.labels, return_inverse=True)
            chosen = chosen[where == np.bincount(where).argmax()]
            continue
        if probe is None:
            return False
        return _largest(probe[1].body) * len(program_ids) <= _MOST_ELEMENTS * len(chosen)


def _together(
    run: Evaluator, ints: Mapping[int, int], program_ids: Array
) -> tuple[Evaluator, ProgramGroup] | None:
    run.shares_loops = True
    try:
        body = run.run(ints)
    except (UnrollLoops, NotSeparableError, UnsupportedOpError, NeedsDataError):
        return None
    if run.overflowed:
        return None
    trips = tuple(
        (loop_id, counts.dense((PROGRAM,))) for loop_id, counts in sorted(run.trips.items())
    )
    return run, ProgramGroup(program_ids, body, trips)


def _largest(body: Any) -> int:
    """Return the number of elements of the largest term over programs and iterations."""
    sizes = [
        array.size
        for tensor in _known(body)
        for dims, array in tensor.terms.items()
        if dims and dims[0] == PROGRAM and any(map(is_loop, dims))
    ]
    return max(sizes, default=0)


def _known(value: Any) -> Iterator[Separable | Predicate]:
    if isinstance(value, Separable | Predicate):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _known(item)
    elif not isinstance(value, Tile | DType | SourceLine):
        for name in field_names(value):
            yield from _known(getattr(value, name))


def _is_confirmed(begin: Begin, ints: Mapping[int, int], group: ProgramGroup) -> bool:
    """Return whether sampled paths, each evaluated alone, agree with the group."""
    rows = np.stack([counts for _, counts in group.trips])
    lengths = rows.sum(axis=0)
    middle = np.abs(2 * lengths - (lengths.min() + lengths.max()))
    for program in (lengths.argmin(), middle.argmin()):
        alike = np.flatnonzero((rows == rows[:, program, None]).all(axis=0))
        some = alike[[0, -1]] if len(alike) > 1 else alike
        run = begin(group.program_ids[some])
        try:
            alone = run.run(ints)
        except (SplitPrograms, UnrollLoops):
            return False
        if not same_commands(path_body(group, some), alone):
            return False
    return True


def same_commands(a: Any, b: Any) -> bool:
    """Return whether two bodies, of the same programs, are the same but for the names of tiles."""
    return _same(a, b, {})


def _same(a: Any, b: Any, slots: dict[int, int]) -> bool:
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is Tile:
        same = (a.shape, a.dtype) == (b.shape, b.dtype)
        return same and slots.setdefault(a.slot, b.slot) == b.slot
    if kind is Separable or kind is Predicate:
        return a.shape == b.shape and _same_numbers(a, b)
    if kind is tuple:
        return len(a) == len(b) and all(_same(x, y, slots) for x, y in zip(a, b, strict=True))
    names = () if kind is DType or kind is SourceLine else field_names(a)
    if not names:
        return a is b or bool(a == b)
    return all(_same(getattr(a, name), getattr(b, name), slots) for name in names)


def _same_numbers(a: Separable | Predicate, b: Any) -> bool:
    if a.equals(b):
        return True
    if isinstance(a, Separable):
        # Mostly the same terms, but for numbers that one of them has in its constant.
        difference = (a - b).trimmed()
        if difference.is_uniform:
            return not difference.const
    dims = union(a.dims, b.dims)
    x, y = a.dense(dims), b.dense(dims)
    if np.prod(np.broadcast_shapes(x.shape, y.shape)) > _MOST_ELEMENTS:
        return False
    return bool((x == y).all())
