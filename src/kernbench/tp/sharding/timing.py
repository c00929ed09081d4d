"""How long the collectives of a step take on a machine: they are run on it, without data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kernbench.errors import UsageError
from kernbench.runtime_api import RuntimeContext
from kernbench.tp.sharding.traffic import CollectiveUse


@dataclass(frozen=True)
class TimedCollective:
    """A collective of a step with its modeled time.

    Attributes:
        use: What is called, how often, and how many bytes.
        algorithm: What the runtime chose for a message of this size.
        each_ns: Time of one call, from the last rank's arrival to the last rank's end.
    """

    use: CollectiveUse
    algorithm: str
    each_ns: float

    @property
    def step_ns(self) -> float:
        """Time of all calls of a step, one after the other."""
        return self.use.count * self.each_ns

    @property
    def algbw_gbps(self) -> float:
        """Message bytes per nanosecond, which is GB/s (nccl-tests' algbw)."""
        return self.use.message_bytes / self.each_ns if self.each_ns else 0.0


def time_collectives(
    uses: Iterable[CollectiveUse], machine: Any = "ahbm"
) -> tuple[TimedCollective, ...]:
    """Return the modeled time of each collective, run alone on idle links of ``machine``.

    Overlap with compute, and contention, belong to a run of the model itself. Equal messages are
    run once.

    Args:
        uses: As :func:`collectives_per_step` gives them.
        machine: What ``RuntimeContext`` takes.

    Raises:
        KernbenchError: The machine is not known, or has fewer SIPs than there are ranks.
    """
    known: dict[tuple[Any, ...], tuple[str, float]] = {}
    timed = []
    for use in uses:
        key = (use.op, use.num_elements, use.dtype, use.num_ranks, use.num_groups)
        if key not in known:
            known[key] = _run_once(use, machine)
        timed.append(TimedCollective(use, *known[key]))
    return tuple(timed)


def _run_once(use: CollectiveUse, machine: Any) -> tuple[str, float]:
    if use.op != "all_reduce" and use.num_elements % use.num_ranks:
        raise UsageError(
            f"{use.op} of {use.num_elements} elements must be divisible by its "
            f"{use.num_ranks} ranks"
        )
    world_size = use.num_ranks * use.num_groups
    with RuntimeContext(machine=machine, ranks=world_size, data=False) as torch:
        torch.multiprocessing.spawn(_call, args=(torch, use), nprocs=world_size)
        rows = [row for row in torch.report()["collectives"] if row["op"] == use.op]
    (row,) = rows
    return row["algorithm"], row["time_ns"] / row["count"]


def _call(rank: int, torch: RuntimeContext, use: CollectiveUse) -> None:
    torch.ahbm.set_device(rank)
    torch.distributed.init_process_group()
    groups = [
        torch.distributed.new_group(list(range(first, first + use.num_ranks)))
        for first in range(0, use.num_ranks * use.num_groups, use.num_ranks)
    ]
    group = groups[rank // use.num_ranks]
    whole = torch.empty((use.num_elements,), dtype=use.dtype)
    if use.op == "all_reduce":
        torch.distributed.all_reduce(whole, group=group)
        return
    part = torch.empty((use.num_elements // use.num_ranks,), dtype=use.dtype)
    if use.op == "all_gather":
        torch.distributed.all_gather_into_tensor(whole, part, group=group)
    else:
        torch.distributed.reduce_scatter_tensor(part, whole, group=group)
