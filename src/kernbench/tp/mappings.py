"""The edges of tensor-parallel regions: their mappings forward and backward.

Each mapping is called like a function and has its gradient as a method::

    y = gather_from_tensor_model_parallel_region(x)
    grad_x = gather_from_tensor_model_parallel_region.backward(grad_y)

Mappings come in conjugate pairs: the backward of one is the forward of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from kernbench.errors import UsageError
from kernbench.runtime_api import Tensor, Work, current_context
from kernbench.tp.parallel_state import get_parallel_state
from kernbench.tp.sharding import ShardRange, shard_range


@dataclass(frozen=True)
class InFlight:
    """A pending result of a collective; not to be used before ``wait()``."""

    result: Tensor
    work: Work | None = None

    def wait(self) -> Tensor:
        """Return the tensor once it is complete."""
        if self.work is not None:
            self.work.wait()
        return self.result


def start_all_reduce(x: Tensor, op: Literal["sum", "max"] = "sum") -> InFlight:
    """Start reducing ``x`` over the group, in place where it is contiguous."""
    x, group = x.contiguous(), get_parallel_state().tensor.group
    return InFlight(x, current_context().distributed.all_reduce(x, op, group, async_op=True))


def start_gather_first_dim(x: Tensor) -> InFlight:
    """Start gathering all ranks' ``x``, concatenated along the first dim."""
    _check_has_dims(x)
    run, axis = current_context(), get_parallel_state().tensor
    out = run.empty((axis.size * x.shape[0], *x.shape[1:]), dtype=x.dtype)
    work = run.distributed.all_gather_into_tensor(out, x.contiguous(), axis.group, async_op=True)
    return InFlight(out, work)


def start_reduce_scatter_first_dim(x: Tensor) -> InFlight:
    """Start summing all ranks' ``x``; each rank gets its part along the first dim."""
    part = _part_of(x, 0)
    run, axis = current_context(), get_parallel_state().tensor
    out = run.empty((part.size, *x.shape[1:]), dtype=x.dtype)
    work = run.distributed.reduce_scatter_tensor(
        out, x.contiguous(), group=axis.group, async_op=True
    )
    return InFlight(out, work)


def all_reduce(x: Tensor, op: Literal["sum", "max"] = "sum") -> Tensor:
    """Return ``x`` reduced over the group, bitwise equal on every rank.

    In place: a contiguous ``x`` is the result itself.
    """
    return start_all_reduce(x, op).wait()


def split_first_dim(x: Tensor) -> Tensor:
    """Return this rank's part of the first dim, which shares memory with ``x``."""
    return x[_part_of(x, 0).slice]


def split_last_dim(x: Tensor) -> Tensor:
    """Return this rank's part of the last dim, contiguous."""
    return x[..., _part_of(x, -1).slice].contiguous()


def gather_first_dim(x: Tensor) -> Tensor:
    """Return all ranks' ``x``, concatenated along the first dim."""
    return start_gather_first_dim(x).wait()


def gather_last_dim(x: Tensor) -> Tensor:
    """Return all ranks' ``x``, concatenated along the last dim."""
    last = len(x.shape)
    gathered = gather_first_dim(x).view(get_parallel_state().tensor.size, *x.shape)
    return gathered.permute(*range(1, last), 0, last).flatten(-2)


def reduce_scatter_first_dim(x: Tensor) -> Tensor:
    """Return this rank's part, along the first dim, of the sum of all ranks' ``x``."""
    return start_reduce_scatter_first_dim(x).wait()


def reduce_scatter_last_dim(x: Tensor) -> Tensor:
    """Return this rank's part, along the last dim, of the sum of all ranks' ``x``."""
    last, part = len(x.shape), _part_of(x, -1)
    parts = x.reshape(*x.shape[:-1], get_parallel_state().tensor.size, part.size)
    return reduce_scatter_first_dim(parts.permute(last - 1, *range(last - 1), last).flatten(0, 1))


def _part_of(x: Tensor, dim: int) -> ShardRange:
    _check_has_dims(x)
    axis = get_parallel_state().tensor
    what = f"dim {dim} of shape {tuple(x.shape)}"
    return shard_range(x.shape[dim], axis.size, axis.rank, what)


def _check_has_dims(x: Tensor) -> None:
    if not x.shape:
        raise UsageError("a scalar has no dim to split or gather along; reshape it to (1,)")


Step = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Mapping:
    """A step of a tensor-parallel program, and the step its gradient takes.

    Reductions are made in place: the argument of an all-reducing step is also its result.
    """

    name: str
    forward: Step = field(repr=False)
    backward: Step = field(repr=False)

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``forward(x)``."""
        return self.forward(x)

    def start(self, x: Tensor) -> InFlight:
        """Start ``forward(x)``, so that kernels can overlap with its collective."""
        return _start(self.forward, x)

    def start_backward(self, grad: Tensor) -> InFlight:
        """Start ``backward(grad)``."""
        return _start(self.backward, grad)


_STARTS: dict[Step, Callable[[Tensor], InFlight]] = {
    all_reduce: start_all_reduce,
    gather_first_dim: start_gather_first_dim,
    reduce_scatter_first_dim: start_reduce_scatter_first_dim,
}


def _start(step: Step, x: Tensor) -> InFlight:
    """Start a step if it is a single collective; complete others at once."""
    starting = _STARTS.get(step)
    return InFlight(step(x)) if starting is None else starting(x)


def _same(x: Tensor) -> Tensor:
    return x


copy_to_tensor_model_parallel_region = Mapping(
    "copy_to_tensor_model_parallel_region", _same, all_reduce
)
"""Every rank uses the same ``x``: its gradient is the sum of theirs."""

reduce_from_tensor_model_parallel_region = Mapping(
    "reduce_from_tensor_model_parallel_region", all_reduce, _same
)
"""Every rank has a partial sum, and all get the whole."""

scatter_to_tensor_model_parallel_region = Mapping(
    "scatter_to_tensor_model_parallel_region", split_last_dim, gather_last_dim
)
"""Each rank takes its part of the last dim."""

gather_from_tensor_model_parallel_region = Mapping(
    "gather_from_tensor_model_parallel_region", gather_last_dim, split_last_dim
)
"""All ranks get all parts of the last dim, and use them alike."""

all_gather_last_dim_from_tensor_parallel_region = Mapping(
    "all_gather_last_dim_from_tensor_parallel_region", gather_last_dim, reduce_scatter_last_dim
)
"""All ranks get all parts of the last dim, and each uses them differently."""

reduce_scatter_last_dim_to_tensor_parallel_region = Mapping(
    "reduce_scatter_last_dim_to_tensor_parallel_region", reduce_scatter_last_dim, gather_last_dim
)
"""Every rank has a partial sum, and each gets its part of the whole's last dim."""

scatter_to_sequence_parallel_region = Mapping(
    "scatter_to_sequence_parallel_region", split_first_dim, gather_first_dim
)
"""Each rank takes its tokens (the first dim)."""

gather_output_from_sequence_parallel_region = Mapping(
    "gather_output_from_sequence_parallel_region", gather_first_dim, split_first_dim
)
"""All ranks get all tokens, and use them alike.

Megatron spells it ``gather_from_sequence_parallel_region(x, tensor_parallel_output_grad=False)``.
"""

gather_from_sequence_parallel_region = Mapping(
    "gather_from_sequence_parallel_region", gather_first_dim, reduce_scatter_first_dim
)
"""All ranks get all tokens, and each uses them differently (a parallel layer)."""

reduce_scatter_to_sequence_parallel_region = Mapping(
    "reduce_scatter_to_sequence_parallel_region", reduce_scatter_first_dim, gather_first_dim
)
"""Every rank has a partial sum for all tokens, and each gets the whole for its own."""
