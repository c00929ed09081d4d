"""Which ranks share a model (tensor parallel) and which hold copies of it (data parallel).

The world is a grid of ``data`` x ``tensor`` ranks with the tensor ranks next to each other, as in
Megatron: 8 ranks at tensor size 4 are the tensor groups 0-3 and 4-7 and the data groups
(0, 4), (1, 5), (2, 6) and (3, 7). The state belongs to a rank of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernbench.errors import KernbenchError, UsageError
from kernbench.runtime_api import RuntimeContext, current_context


class ParallelStateError(KernbenchError, RuntimeError):
    """Model parallelism is used before it is set up, or set up twice."""


@dataclass(frozen=True)
class Axis:
    """One rank's place on one axis of the grid: its group, and its position there."""

    group: Any
    ranks: tuple[int, ...]
    rank: int

    @property
    def size(self) -> int:
        return len(self.ranks)


@dataclass(frozen=True)
class ParallelState:
    """One rank's place in the grid."""

    tensor: Axis
    data: Axis


def initialize_model_parallel(
    tensor_model_parallel_size: int | None = None, *, torch: RuntimeContext | None = None
) -> None:
    """Set up the tensor and data groups of the calling rank; every rank of the world must call it.

    Args:
        tensor_model_parallel_size: Ranks that share one model; None for all of the world.
        torch: The run; None for the one that is active.

    Raises:
        UsageError: The size does not divide the world; names both numbers.
        ParallelStateError: There is no process group yet, or the groups are already set up.
    """
    context = torch or current_context()
    extensions = context.run.rank_state.extensions
    if not context.distributed.is_initialized():
        raise ParallelStateError(
            "initialize_model_parallel needs the world's process group; "
            "call torch.distributed.init_process_group() first"
        )
    if ParallelState in extensions:
        raise ParallelStateError(
            f"model parallelism is already initialized on rank {context.distributed.get_rank()} "
            f"with tensor parallel size {extensions[ParallelState].tensor.size}; "
            "call destroy_model_parallel() first"
        )
    world_size = context.distributed.get_world_size()
    size = world_size if tensor_model_parallel_size is None else tensor_model_parallel_size
    if size < 1 or world_size % size:
        raise UsageError(
            f"tensor_model_parallel_size ({size}) must divide the world size ({world_size})"
        )
    tensor_ranks = [range(first, first + size) for first in range(0, world_size, size)]
    data_ranks = [range(first, world_size, size) for first in range(size)]
    tensor = _join(context, tensor_ranks)
    extensions[ParallelState] = ParallelState(tensor=tensor, data=_join(context, data_ranks))


def _join(context: RuntimeContext, axis: list[range]) -> Axis:
    """Make all groups of an axis, as every rank must, and return the calling rank's."""
    rank = context.distributed.get_rank()
    own = None
    for ranks in axis:
        group = context.distributed.new_group(list(ranks))
        if rank in ranks:
            own = Axis(group, tuple(ranks), ranks.index(rank))
    assert own is not None
    return own


def destroy_model_parallel() -> None:
    """Drop the calling rank's groups, if it has any."""
    current_context().run.rank_state.extensions.pop(ParallelState, None)


def model_parallel_is_initialized() -> bool:
    """Return whether the calling rank has its groups."""
    return ParallelState in current_context().run.rank_state.extensions


def get_parallel_state() -> ParallelState:
    """Return the calling rank's place in the grid.

    Raises:
        ParallelStateError: ``initialize_model_parallel`` has not been called on this rank.
    """
    context = current_context()
    state = context.run.rank_state.extensions.get(ParallelState)
    if state is None:
        raise ParallelStateError(
            f"model parallelism is not initialized on rank {context.current_rank()}; "
            "call kernbench.tp.initialize_model_parallel() on every rank first"
        )
    assert isinstance(state, ParallelState)
    return state


def get_tensor_model_parallel_group() -> Any:
    """Return the process group of the ranks that share a model with the calling rank."""
    return get_parallel_state().tensor.group


def get_tensor_model_parallel_world_size() -> int:
    """Return how many ranks share a model."""
    return get_parallel_state().tensor.size


def get_tensor_model_parallel_rank() -> int:
    """Return the calling rank's position among those that share its model."""
    return get_parallel_state().tensor.rank


def get_tensor_model_parallel_src_rank() -> int:
    """Return the world rank of the first rank that shares the calling rank's model."""
    return get_parallel_state().tensor.ranks[0]


def get_data_parallel_group() -> Any:
    """Return the process group of the ranks that hold the same shard as the calling rank."""
    return get_parallel_state().data.group


def get_data_parallel_world_size() -> int:
    """Return how many copies of the model there are."""
    return get_parallel_state().data.size


def get_data_parallel_rank() -> int:
    """Return the index of the calling rank's copy of the model."""
    return get_parallel_state().data.rank


def get_data_parallel_src_rank() -> int:
    """Return the world rank of the first rank that holds the calling rank's shard."""
    return get_parallel_state().data.ranks[0]
