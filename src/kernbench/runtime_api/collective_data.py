"""What a collective does to the tensors of its ranks, around the schedule's work buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kernbench.replay import run_collective
from kernbench.runtime_api.storage import Array, BufferView

if TYPE_CHECKING:
    from kernbench.collectives import Schedule
    from kernbench.runtime_api.work import Signature, Work

Views = tuple[BufferView, ...]
"""The tensors that one rank gives or takes."""


def build_record(
    schedule: Schedule, signature: Signature, works: Sequence[Work]
) -> Callable[[], None]:
    """Return the function that runs the collective on data; it holds buffers, not tensors."""
    inputs = [work.inputs for work in works]
    outputs = [work.outputs for work in works]
    reduce_op = signature.reduce_op or "sum"
    op = signature.op

    def run_in_place() -> None:
        views = outputs if op != "send_recv" else [inputs[0], outputs[1]]
        run_collective(schedule, reduce_op, [view.array().reshape(-1) for (view,) in views])

    def run_all_gather() -> None:
        arrays = []
        for position, (given, taken) in enumerate(zip(inputs, outputs, strict=True)):
            array = _joined(taken, copy=False)
            _chunk(schedule, array, position)[:] = given[0].array().reshape(-1)
            arrays.append(array)
        run_collective(schedule, reduce_op, arrays)
        for taken, array in zip(outputs, arrays, strict=True):
            if len(taken) > 1:
                _spread(array, taken)

    def run_reduce_scatter() -> None:
        arrays = [_joined(given, copy=True) for given in inputs]
        run_collective(schedule, reduce_op, arrays)
        for position, (taken, array) in enumerate(zip(outputs, arrays, strict=True)):
            taken[0].array().reshape(-1)[:] = _chunk(schedule, array, position)

    return {
        "reduce": lambda: _reduce(schedule, reduce_op, outputs),
        "gather": lambda: _gather(schedule, inputs, outputs),
        "scatter": lambda: _scatter(schedule, inputs, outputs),
        "all_to_all": lambda: _exchange(schedule, inputs, outputs),
        "all_gather": run_all_gather,
        "reduce_scatter": run_reduce_scatter,
        "barrier": _nothing,
    }.get(op, run_in_place)


def _reduce(schedule: Schedule, reduce_op: str, outputs: Sequence[Views]) -> None:
    # Who does not get the result keeps its tensor.
    arrays = [view.array().reshape(-1) for (view,) in outputs]
    arrays = [
        array if position == schedule.root else array.copy()
        for position, array in enumerate(arrays)
    ]
    run_collective(schedule, reduce_op, arrays)


def _gather(schedule: Schedule, inputs: Sequence[Views], outputs: Sequence[Views]) -> None:
    arrays = []
    for position, given in enumerate(inputs):
        array = np.empty(schedule.num_elements, given[0].array().dtype)
        _chunk(schedule, array, position)[:] = given[0].array().reshape(-1)
        arrays.append(array)
    run_collective(schedule, "", arrays)
    _spread(arrays[schedule.root], outputs[schedule.root])


def _scatter(schedule: Schedule, inputs: Sequence[Views], outputs: Sequence[Views]) -> None:
    whole = _joined(inputs[schedule.root], copy=True)
    arrays = [whole if each == schedule.root else whole.copy() for each in range(len(outputs))]
    run_collective(schedule, "", arrays)
    for position, (taken, array) in enumerate(zip(outputs, arrays, strict=True)):
        taken[0].array().reshape(-1)[:] = _chunk(schedule, array, position)


def _exchange(schedule: Schedule, inputs: Sequence[Views], outputs: Sequence[Views]) -> None:
    """Give every rank its parts: what any all_to_all does, without the buffers in between."""
    n = schedule.num_ranks
    sizes = np.diff(schedule.chunk_bounds).reshape(n, n)
    given = [_joined(views, copy=True) for views in inputs]
    starts = np.cumsum(sizes, axis=1) - sizes
    for rank, views in enumerate(outputs):
        parts = [
            given[src][starts[src, rank] : starts[src, rank] + sizes[src, rank]] for src in range(n)
        ]
        _spread(np.concatenate(parts), views)


def _nothing() -> None:
    """A barrier moves no data."""


def _chunk(schedule: Schedule, array: Array, position: int) -> Array:
    return array[schedule.chunk_bounds[position] : schedule.chunk_bounds[position + 1]]


def _joined(views: tuple[BufferView, ...], copy: bool) -> Array:
    if len(views) == 1:
        array = views[0].array().reshape(-1)
        return array.copy() if copy else array
    return np.concatenate([view.array().reshape(-1) for view in views])


def _spread(array: Array, views: tuple[BufferView, ...]) -> None:
    start = 0
    for view in views:
        target = view.array().reshape(-1)
        target[:] = array[start : start + len(target)]
        start += len(target)
