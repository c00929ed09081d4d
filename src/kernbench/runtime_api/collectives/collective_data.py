"""What a collective does to the tensors of its ranks, around the schedule's work buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kernbench.dtypes import Array
from kernbench.replay import run_collective
from kernbench.runtime_api.memory.storage import BufferView

if TYPE_CHECKING:
    from kernbench.collectives import Schedule
    from kernbench.runtime_api.collectives.work import Signature, Work


def build_record(
    schedule: Schedule, signature: Signature, works: Sequence[Work]
) -> Callable[[], None]:
    """Return the function that runs the collective on data; it holds buffers, not tensors.

    Where a buffer counts what was written, the same steps then run on those counts: an element of
    the result was written if all elements that it is made of were.
    """
    inputs = [work.inputs for work in works]
    outputs = [work.outputs for work in works]
    op = signature.reduce_op or "sum"
    run_on = _RUN_ON.get(signature.op, _in_place)
    views = [view for item in (*inputs, *outputs) for view in item]

    def run() -> None:
        run_on(schedule, op, inputs, outputs, BufferView.array)
        if any(view.is_counted for view in views):
            for view in views:
                view.count()
            run_on(schedule, "band", inputs, outputs, BufferView.written)

    return run


Views = Sequence[tuple[BufferView, ...]]
"""The views of every rank."""
Shown = Callable[[BufferView], Array]
"""The arrays that a collective moves: the elements, or which of them were written."""


def _in_place(schedule: Schedule, op: str, _: Views, outputs: Views, shown: Shown) -> None:
    run_collective(schedule, op, [shown(view).reshape(-1) for (view,) in outputs])


def _reduce(schedule: Schedule, op: str, _: Views, outputs: Views, shown: Shown) -> None:
    # Who does not get the result keeps its tensor.
    arrays = [shown(view).reshape(-1) for (view,) in outputs]
    arrays = [
        array if position == schedule.root else array.copy()
        for position, array in enumerate(arrays)
    ]
    run_collective(schedule, op, arrays)


def _gather(schedule: Schedule, op: str, inputs: Views, outputs: Views, shown: Shown) -> None:
    arrays = []
    for position, value in enumerate(inputs):
        part = shown(value[0]).reshape(-1)
        array = np.empty(schedule.num_elements, part.dtype)
        _chunk(schedule, array, position)[:] = part
        arrays.append(array)
    run_collective(schedule, op, arrays)
    _spread(arrays[schedule.root], outputs[schedule.root], shown)


def _scatter(schedule: Schedule, op: str, inputs: Views, outputs: Views, shown: Shown) -> None:
    whole = _joined(inputs[schedule.root], shown, copy=True)
    arrays = [whole if index == schedule.root else whole.copy() for index in range(len(outputs))]
    run_collective(schedule, op, arrays)
    for position, (taken, array) in enumerate(zip(outputs, arrays, strict=True)):
        shown(taken[0]).reshape(-1)[:] = _chunk(schedule, array, position)


def _exchange(schedule: Schedule, _: str, inputs: Views, outputs: Views, shown: Shown) -> None:
    """Give every rank its parts: the result of any all_to_all, without intermediate buffers."""
    n = schedule.num_ranks
    sizes = np.diff(schedule.chunk_bounds).reshape(n, n)
    arrays = [_joined(views, shown, copy=True) for views in inputs]
    starts = np.cumsum(sizes, axis=1) - sizes
    for rank, views in enumerate(outputs):
        parts = [
            arrays[src][starts[src, rank] : starts[src, rank] + sizes[src, rank]]
            for src in range(n)
        ]
        _spread(np.concatenate(parts), views, shown)


def _all_gather(schedule: Schedule, op: str, inputs: Views, outputs: Views, shown: Shown) -> None:
    arrays = []
    for position, (pair, taken) in enumerate(zip(inputs, outputs, strict=True)):
        array = _joined(taken, shown, copy=False)
        _chunk(schedule, array, position)[:] = shown(pair[0]).reshape(-1)
        arrays.append(array)
    run_collective(schedule, op, arrays)
    for taken, array in zip(outputs, arrays, strict=True):
        if len(taken) > 1:
            _spread(array, taken, shown)


def _reduce_scatter(
    schedule: Schedule, op: str, inputs: Views, outputs: Views, shown: Shown
) -> None:
    arrays = [_joined(value, shown, copy=True) for value in inputs]
    run_collective(schedule, op, arrays)
    for position, (taken, array) in enumerate(zip(outputs, arrays, strict=True)):
        shown(taken[0]).reshape(-1)[:] = _chunk(schedule, array, position)


def _nothing(*_: object) -> None:
    """A barrier moves no data."""


_RUN_ON: dict[str, Callable[..., None]] = {
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _exchange,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "barrier": _nothing,
    "send_recv": lambda schedule, op, inputs, outputs, shown: _in_place(
        schedule, op, inputs, [inputs[0], outputs[1]], shown
    ),
}


def _chunk(schedule: Schedule, array: Array, position: int) -> Array:
    return array[schedule.chunk_bounds[position] : schedule.chunk_bounds[position + 1]]


def _joined(views: tuple[BufferView, ...], shown: Shown, copy: bool) -> Array:
    if len(views) == 1:
        array = shown(views[0]).reshape(-1)
        return array.copy() if copy else array
    return np.concatenate([shown(view).reshape(-1) for view in views])


def _spread(array: Array, views: tuple[BufferView, ...], shown: Shown) -> None:
    start = 0
    for view in views:
        target = shown(view).reshape(-1)
        target[:] = array[start : start + len(target)]
        start += len(target)
