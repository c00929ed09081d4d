"""``torch.multiprocessing.spawn``: ranks of the run in place of processes."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch.multiprocessing
from torch import Tensor

from kernbench.lazy import refuse_lazy_result
from kernbench.torch_bridge.device_limit import check_ranks
from kernbench.torch_bridge.patches import Patches
from kernbench.torch_bridge.queues import is_shared

if TYPE_CHECKING:
    from kernbench.runtime_api import SpawnContext
    from kernbench.torch_bridge.programs import Programs


def install(patches: Patches, programs: Programs) -> None:
    """Let programs that start processes themselves start ranks."""

    def spawn(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> SpawnContext | None:
        check_ranks(nprocs, f"torch.multiprocessing.spawn(nprocs={nprocs})")
        context = programs.start(_in_new_main(fn, args, programs), nprocs, {})
        if not join:
            return context
        context.join()
        return None

    for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        patches.set_all(module, {"spawn": spawn, "start_processes": spawn})


def _in_new_main(
    fn: Callable[..., Any], args: tuple[Any, ...], programs: Programs
) -> Callable[[int], None]:
    """Return what a rank does: run the program's file as ``__mp_main__``, then its own ``fn``."""
    # Tensors, queues and locks are shared, all else is each rank's own, as between real processes.
    own = tuple(args)

    def work(rank: int) -> None:
        arguments = copy.deepcopy(own, {id(each): each for each in _shared_in(own)})
        function = fn
        main = sys.modules["__main__"]
        if getattr(fn, "__module__", None) == "__main__" and hasattr(main, "__file__"):
            module = programs.execute("__mp_main__")
            sys.modules["__main__"] = module
            found: Any = module
            for name in fn.__qualname__.split("."):
                found = getattr(found, name)
            function = found
        refuse_lazy_result(function(rank, *arguments), f"the function of rank {rank}")

    return work


def _shared_in(value: Any) -> Iterable[Any]:
    if isinstance(value, Tensor) or is_shared(value):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _shared_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _shared_in(each)
