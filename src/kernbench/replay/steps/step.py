"""What a plan is made of: closures that take a frame and move values between its slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernbench.commands import Predicate, Separable, is_loop
from kernbench.dtypes import Array
from kernbench.replay.steps.frame import Frame
from kernbench.replay.steps.sites import Chunks, at_frame

Step = Callable[[Frame], None]

_KEPT_BYTES = 8 << 20
"""The most bytes of known tensors that one step keeps as data."""


class Materialise:
    """A step that turns a tensor that phase 1 knows into data, kept per chunk and iteration."""

    def __init__(
        self,
        tensor: Separable | Predicate,
        dims: tuple[int, ...],
        dtype: np.dtype[Any],
        slot: int,
        chunks: Chunks,
    ) -> None:
        self._tensor, self._dims, self._dtype, self._slot = tensor, dims, dtype, slot
        self._chunks = chunks
        self._loops = [dim - 1 for dim in tensor.dims if is_loop(dim)]
        self._kept: dict[Any, Array] = {}
        self._kept_bytes = 0

    def __call__(self, frame: Frame) -> None:
        key = (frame.chunk, *[frame.iterations[loop] for loop in self._loops])
        value = self._kept.get(key)
        if value is None:
            tensor = self._tensor
            if isinstance(tensor, Separable):
                value = at_frame(tensor, frame, self._chunks).dense(self._dims)
            else:
                value = at_frame(tensor, frame, self._chunks).dense(self._dims)
            value = value.astype(self._dtype)
            if self._kept_bytes + value.nbytes <= _KEPT_BYTES:
                self._kept[key] = value
                self._kept_bytes += value.nbytes
        frame.values[self._slot] = value


def calling(function: Callable[..., Array], inputs: tuple[int, ...], target: int) -> Step:
    """Return the step that computes ``function`` of some slots into another."""
    if len(inputs) == 1:
        (one,) = inputs

        def unary(frame: Frame) -> None:
            values = frame.values
            values[target] = function(values[one])

        return unary
    if len(inputs) == 2:
        left, right = inputs

        def binary(frame: Frame) -> None:
            values = frame.values
            values[target] = function(values[left], values[right])

        return binary

    def step(frame: Frame) -> None:
        values = frame.values
        values[target] = function(*[values[slot] for slot in inputs])

    return step


class Freeing:
    """A step that frees values that are not read again."""

    def __init__(self, slots: tuple[int, ...]) -> None:
        self._slots = slots

    def __call__(self, frame: Frame) -> None:
        for slot in self._slots:
            frame.values[slot] = None


def looping(
    loop_id: int, trip_count: int, body: list[Step], moves: list[tuple[int, int, int, int]]
) -> Step:
    """Return the step that repeats ``body``; ``moves`` are the slots init, arg, yielded, result."""

    def step(frame: Frame) -> None:
        values, iterations = frame.values, frame.iterations
        for init, arg, _, _ in moves:
            values[arg] = values[init]
        for iteration in range(trip_count):
            iterations[loop_id] = iteration
            for inner in body:
                inner(frame)
            # All at once: a loop may swap the values that it carries.
            new = [values[yielded] for _, _, yielded, _ in moves]
            for (_, arg, _, _), value in zip(moves, new, strict=True):
                values[arg] = value
        for _, arg, _, result in moves:
            values[result] = values[arg]

    return step
