"""Queues by which one rank of an engine tells the others of its group, in folded runs."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch.distributed as dist

from kernbench.errors import UsageError
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import current

MODULE = "vllm.distributed.device_communicators.shm_broadcast"


def patch(module: ModuleType, patches: Patches) -> None:
    """Let a group of which one rank runs for all have a queue that nobody reads."""
    queue: Any = module.__dict__["MessageQueue"]
    create = queue.create_from_process_group

    def create_from_process_group(pg: Any, *args: Any, **kwargs: Any) -> Any:
        folding = current().session.run.folding
        if folding is None:
            return create(pg, *args, **kwargs)
        running = {folding.representative(rank) for rank in dist.get_process_group_ranks(pg)}
        if len(running) > 1:
            raise UsageError(
                f"the program cannot be folded: ranks {sorted(running)} of one group talk by a "
                "queue in shared memory, whose readers do not all run; leave --fold out"
            )
        return queue(n_reader=0, n_local_reader=0)

    patches.set(queue, "create_from_process_group", staticmethod(create_from_process_group))
