"""``torch.multiprocessing.spawn``: ranks of the run in place of processes."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import update_wrapper
from operator import attrgetter
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch.multiprocessing
from torch import Tensor

from kernbench.lazy import refuse_lazy_result
from kernbench.torch_bridge.base.device_limit import check_one_node, check_ranks
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.python.queues import is_shared

if TYPE_CHECKING:
    from kernbench.runtime_api import SpawnContext
    from kernbench.torch_bridge.front.programs import Programs


def install(patches: Patches, programs: Programs) -> None:
    """Let programs that spawn processes start ranks."""

    def spawn(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> SpawnContext | None:
        asked = f"torch.multiprocessing.spawn(nprocs={nprocs})"
        check_ranks(nprocs, asked)
        check_one_node(nprocs, programs.session.run.machine, asked)
        context = programs.start(
            _in_new_main(fn, args, programs), nprocs, {}, is_forked=start_method == "fork"
        )
        if not join:
            return context
        context.join()
        return None

    for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        patches.set_all(module, {"spawn": spawn, "start_processes": spawn})


def _in_new_main(
    fn: Callable[..., Any], args: tuple[Any, ...], programs: Programs
) -> Callable[[int], None]:
    """Return the work of a rank: run the program's file as ``__mp_main__``, then its own ``fn``."""
    # As between real processes, tensors, queues and locks are shared; all else is copied, an object
    # whose method it is together with the arguments, which may refer to it.
    method = fn if isinstance(fn, MethodType) and not isinstance(fn.__self__, type) else None
    own = None if method is None else method.__self__, tuple(args)

    def work(rank: int) -> None:
        owner, arguments = own_copy(own)
        if method is None:
            function = own_code(fn, programs)
        else:
            function = MethodType(method.__func__, owner)
        refuse_lazy_result(function(rank, *arguments), f"the function of rank {rank}")

    return work


def own_code(value: Any, programs: Programs, *, is_forked: bool = False) -> Any:
    """Return the calling process's own version of a function or class of its parent.

    It is looked up by name in the process's own modules, as in a spawned real process; a forked one
    has what only its parent has defined, too, as under ``if __name__ == "__main__"``.
    """
    if isinstance(value, MethodType) and isinstance(value.__self__, type):
        return getattr(own_code(value.__self__, programs), value.__name__)
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", "<")
    if module is None or "<" in path:
        return value
    main = sys.modules["__main__"]
    if module == "__main__" and hasattr(main, "__file__"):
        if main.__name__ == "__main__":
            main = sys.modules["__main__"] = programs.execute("__mp_main__")
        if is_forked and not hasattr(main, path.partition(".")[0]):
            return _with_names_of(value, main)
        return attrgetter(path)(main)
    try:
        return attrgetter(path)(importlib.import_module(module))
    except (ImportError, AttributeError):
        return value


def _with_names_of(value: Any, main: ModuleType) -> Any:
    """Return code of a parent's ``__main__`` that finds its names in the calling process's own."""
    if not isinstance(value, FunctionType) or value.__module__ != "__main__":
        return value
    names = FunctionType(
        value.__code__, vars(main), value.__name__, value.__defaults__, value.__closure__
    )
    names.__kwdefaults__ = value.__kwdefaults__
    return update_wrapper(names, value)


def take_values(parent: Mapping[str, Any]) -> None:
    """Copy what the parent's ``__main__`` has, as a forked process has it.

    Of code that is what the process has not defined itself.
    """
    main = sys.modules.get("__mp_main__")
    if main is None or vars(main) is parent:
        return
    for name, value in parent.items():
        is_code = isinstance(value, (type, FunctionType, ModuleType))
        if is_code and not name.startswith("__"):
            vars(main).setdefault(name, _with_names_of(value, main))
        elif not name.startswith("__"):
            try:
                vars(main)[name] = own_copy(value)
            except Exception:
                # Not every value can be copied, and each says so in its own way: a lock, a pool.
                vars(main)[name] = value


def own_copy(value: Any) -> Any:
    """Return what another process receives for a value: a copy, except of what ranks share."""
    return copy.deepcopy(value, {id(item): item for item in found_in(value, _is_shared)})


def found_in(value: Any, is_wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield what is wanted among a value and what its lists and dictionaries hold."""
    if is_wanted(value):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from found_in(item, is_wanted)


def _is_shared(value: Any) -> bool:
    return isinstance(value, Tensor) or is_shared(value)
