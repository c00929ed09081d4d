"""Collectives in a record: which there are, what is written of their options, how one is called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch.distributed import ReduceOp

from kernbench.judging.record import RecordError

METHODS = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "allgather_coalesced",
    "all_gather_single", "all_gather_single_coalesced", "_allgather_base",
    "allgather_into_tensor_coalesced", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    "all_to_all_single", "alltoall_base", "alltoall", "gather", "scatter", "barrier", "send",
    "recv", "_start_coalescing", "_end_coalescing",
)  # fmt: skip
"""Methods of a process group that a record may name."""


def described_options(value: Any) -> Any:
    """Return options of a collective as JSON; None for values that are none.

    Raises:
        RecordError: They have a reduction with a factor.
    """
    if not hasattr(value, "reduceOp") and not hasattr(value, "rootRank"):
        return {} if type(value).__name__.endswith("Options") else None
    said: dict[str, Any] = {}
    if hasattr(value, "reduceOp"):
        op = getattr(value.reduceOp, "op", value.reduceOp)
        if op == ReduceOp.PREMUL_SUM:
            raise RecordError("a reduction with a factor")
        said["reduceOp"] = op.name
    if hasattr(value, "rootRank"):
        said["rootRank"] = int(value.rootRank)
    return said


def options_of(said: dict[str, Any]) -> Any:
    """Return the options that JSON says.

    Raises:
        RecordError: It says none.
    """
    try:
        values = {}
        if "reduceOp" in said:
            values["reduceOp"] = ReduceOp(ReduceOp.RedOpType.__members__[said["reduceOp"]])
        if "rootRank" in said:
            values["rootRank"] = int(said["rootRank"])
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"options of a collective: {error!r}") from None
    return SimpleNamespace(**values)


def group_of(ranks: tuple[int, ...]) -> Any:
    """Return a process group of some ranks, made by those alone.

    Raises:
        RecordError: The calling rank is not in it.
    """
    if not dist.is_initialized() or dist.get_rank() not in ranks:
        raise RecordError(f"a collective of ranks {list(ranks)}")
    if ranks == tuple(range(dist.get_world_size())):
        return dist.group.WORLD
    return dist.new_group(list(ranks), use_local_synchronization=True)


def ranks_of(group: Any) -> list[int]:
    """Return the ranks of a process group, in its order."""
    return list(map(int, dist.get_process_group_ranks(group)))
