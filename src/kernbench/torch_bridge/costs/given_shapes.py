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
    from kernbench.torch_bridge.costs.operations import OperationCosts

_MOST_TENSORS = 16
"""The most tensors that are named of an operation on lists."""
_Tensors = tuple[tuple[tuple[int, ...], str], ...]
"""The shapes and dtypes of tensors."""


def with_shapes(
    costs: OperationCosts, timing: OperationTiming, tensors: _Tensors, cold_bytes: int
) -> OperationTiming:
    """Return the same schedules, with the shapes and dtypes of a call's tensors.

    Of what is read, ``cold_bytes`` are not what the operation before has made.
    """

    def with_reuse(reuse: Reuse) -> OperationTiming:
        reused = timing.with_reuse(reuse._replace(cold_bytes=cold_bytes))
        return costs.once(with_shapes, reused, tensors, cold_bytes)

    return OperationTiming(partial(_template, timing, tensors), with_reuse)


def tensors_of(args: Iterable[Any]) -> _Tensors:
    """Return the shapes and dtypes of the tensors among arguments, of so many of them."""
    return tuple(_tensors(args))[:_MOST_TENSORS]


def _tensors(values: Iterable[Any]) -> Iterable[tuple[tuple[int, ...], str]]:
    for value in values:
        if isinstance(value, Tensor):
            # A nested tensor has many shapes.
            shape = () if value.is_nested else tuple(value.size())
            yield shape, str(value.dtype).removeprefix("torch.")
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _template(timing: OperationTiming, tensors: _Tensors, queued: bool) -> Template:
    values = {
        "shapes": [list(shape) for shape, _ in tensors],
        "dtypes": [name for _, name in tensors],
    }
    template = timing.template(queued)
    return dataclasses.replace(template, launched_with={**template.launched_with, **values})
