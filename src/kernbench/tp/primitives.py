"""Operations of a tensor-parallel group on a tensor: reduce, split, gather, reduce-scatter.

Ranks agree on shapes. Where a result is one rank's part, the parts are in the group's rank order.
"""

from __future__ import annotations

from dataclasses import dataclass
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
