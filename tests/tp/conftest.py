from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernbench.runtime_api import RuntimeContext
from kernbench.tp import initialize_model_parallel


@pytest.fixture(scope="session")
def on_ranks() -> Callable[..., list[Any]]:
    """Run a body on every rank of a fresh world and give what the ranks returned, in rank order."""

    def run(
        world_size: int,
        body: Callable[[RuntimeContext, int], Any],
        tensor_size: int | None = None,
        data: bool = True,
    ) -> list[Any]:
        results: list[Any] = [None] * world_size
        with RuntimeContext(machine="ahbm", ranks=world_size, data=data) as torch:

            def worker(rank: int) -> None:
                torch.ahbm.set_device(rank)
                torch.distributed.init_process_group()
                initialize_model_parallel(tensor_size)
                results[rank] = body(torch, rank)

            torch.multiprocessing.spawn(worker, nprocs=world_size)
        return results

    return run
