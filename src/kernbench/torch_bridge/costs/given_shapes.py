"""Schedules that name the tensors of the calls that they are of, for those who read the log."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from kernbench.torch_bridge.base.operation_timing import OperationTiming

if TYPE_CHECKING:
    from kernbench.library_kernels import Reuse
    from kernbench.op_log import Template

_MOST_TENSORS = 16
"""The most tensors that are named of an operation on lists."""
_Tensors = tuple[tuple[tuple[int, ...], str], ...]
"""The shapes and dtypes of tensors."""


class GivenShapes:
    """Schedules by the shapes and dtypes of what they were given; equal ones are one object."""

    def __init__(self) -> None:
        self._known: dict[tuple[OperationTiming, _Tensors, int], OperationTiming] = {}

    def timing(
        self, timing: OperationTiming, args: Iterable[Any], cold_bytes: int = 0
    ) -> OperationTiming:
        """Return the same schedules, with the shapes and dtypes of the tensors in ``args``.

        Of what is read, ``cold_bytes`` are not what the operation before has made.
        """
        tensors = tuple(_tensors(args))[:_MOST_TENSORS]
        return self._named(timing, tensors, cold_bytes)

    def _named(
        self, timing: OperationTiming, tensors: _Tensors, cold_bytes: int
    ) -> OperationTiming:
        key = (timing, tensors, cold_bytes)
        found = self._known.get(key)
        if found is None:

            def with_reuse(reuse: Reuse) -> OperationTiming:
                reused = timing.with_reuse(reuse._replace(cold_bytes=cold_bytes))
                return self._named(reused, tensors, cold_bytes)

            found = OperationTiming(partial(_template, timing, tensors), with_reuse)
            self._known[key] = found
        return found


def _tensors(values: Iterable[Any]) -> Iterable[tuple[tuple[int, ...], str]]:
    for value in values:
        if isinstance(value, Tensor):
            # A nested tensor has many shapes.
            shape = () if value.is_nested else tuple(value.shape)
            yield shape, str(value.dtype).removeprefix("torch.")
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _template(timing: OperationTiming, tensors: _Tensors, queued: bool) -> Template:
    given = {
        "shapes": [list(shape) for shape, _ in tensors],
        "dtypes": [each for _, each in tensors],
    }
    made = timing.template(queued)
    return dataclasses.replace(made, given={**made.given, **given})
