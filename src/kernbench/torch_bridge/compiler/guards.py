"""What compiled code holds for: the device of a tensor, which C++ does not know, and the rank.

Ranks share the code of libraries, and with it what was compiled of it. The limit of recompilations
is of one process, so that those for other ranks do not count; nor do the sizes that others had,
from which a process learns what to take as dynamic.
"""

from __future__ import annotations

import functools
import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from kernbench.torch_bridge.base.operations import PLAIN
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.device.tensors import device_of
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.compiling import Views
from kernbench.torch_bridge.processes.process import Process, current
from kernbench.torch_bridge.python.hash_seeds import plain_where_compiled


def install(patches: Patches, views: Views) -> None:
    """Guard what is compiled for a tensor by the tensor's device, too."""
    from torch._dynamo import convert_frame, pgo
    from torch._dynamo.guards import CheckFunctionManager, GuardBuilder
    from torch._dynamo.variables.builder import VariableBuilder
    from torch._guards import Guard

    patches.wrap(GuardBuilder, "TENSOR_MATCH", _also_by_device)
    patches.wrap(GuardBuilder, "id_match_unchecked", _also_as_it_runs, views)
    patches.wrap(Guard, "create", _but_of_stand_ins, views)
    patches.wrap(VariableBuilder, "_wrap", _as_its_own, views)
    patches.wrap(GuardBuilder, "TYPE_MATCH", _but_of_replaced, views)
    patches.wrap(CheckFunctionManager, "__init__", _of_rank)
    patches.wrap(convert_frame, "compute_cache_size", _counting_own)
    patches.set(pgo, "get_code_state", _of_own(pgo.get_code_state, pgo.CodeState))


def _of_own(original: Callable[[], Any], make: Callable[[], Any]) -> Callable[[], Any]:
    """Return what gives the sizes that functions were compiled for: the rank's own."""
    of_process: dict[Process, Any] = {}

    @functools.wraps(original)
    def get_code_state() -> Any:
        process = current()
        if process not in of_process:
            of_process[process] = defaultdict(make)
        return of_process[process]

    return get_code_state


def _of_rank(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    """Initialize what holds guards, and note whose they are."""
    original(self, *args, **kwargs)
    self.guard_manager.kernbench_rank = current().rank


def _counting_own(original: Callable[..., Any], frame: Any, entries: Any, *total: int) -> Any:
    """Count compiled versions of a function: those of the rank."""
    rank = current().rank
    own = [
        entry for entry in entries if getattr(entry.guard_manager, "kernbench_rank", rank) == rank
    ]
    return original(frame, own, *(len(own) for _ in total))


def _also_by_device(original: Callable[..., Any], self: Any, guard: Any, value: Any = None) -> Any:
    result = original(self, guard, value)
    seen = self.get(guard) if value is None else value
    if callable(seen) and not isinstance(seen, torch.Tensor):
        seen = seen()
    if isinstance(seen, torch.Tensor) and type(seen) in PLAIN:
        expected = device_of(seen)
        self.get_guard_manager(guard).add_lambda_guard(
            unseen(lambda tensor: device_of(tensor) == expected),
            [f"device_of({getattr(guard, 'name', '?')}) == {expected}"],
            guard.user_stack,
        )
    return result


def _also_as_it_runs(
    original: Callable[..., Any], views: Views, self: Any, guard: Any, *hint: Any
) -> Any:
    """Guard what an object is, so that the bridge's stand-in for it passes too.

    The guards of ``torch.arange`` are made while PyTorch's own shows, and asked while it does not.
    """
    value = self.get(guard)
    stand_in = views.stand_in_of(value)
    if stand_in is None:
        return original(self, guard, *hint)
    # No Python function, whose calls would count.
    is_either = (value, stand_in).__contains__
    self.get_guard_manager(guard).add_lambda_guard(
        is_either,
        [f"{getattr(guard, 'name', '?')} is PyTorch's own, or stands in for it"],
        guard.user_stack,
    )
    return None


def _as_its_own(original: Callable[..., Any], views: Views, self: Any, value: Any) -> Any:
    """Take a program's value into a graph: a function of the bridge as PyTorch's own.

    A program that has taken it out of PyTorch's module (``from torch import zeros_like``) holds it.
    """
    return original(self, plain_where_compiled(views.own_of(value)))


def _but_of_stand_ins(original: Callable[..., Any], views: Views, self: Any, builder: Any) -> Any:
    """Make guards, without those of parts of functions with a stand-in.

    Default values and cells of the one are not those of the other.
    """
    source = getattr(self.originating_source, "base", None)
    while source is not None:
        seen = builder.get(source)
        if views.stand_in_of(seen) is not None or views.own_of(seen) is not seen:
            return None
        source = getattr(source, "base", None)
    return original(self, builder)


def _but_of_replaced(original: Callable[..., Any], views: Views, self: Any, guard: Any) -> Any:
    """Guard an object's class, but not those of ``os.environ`` and of stand-ins.

    They have another class while something is compiled, as ``flex_attention_hop`` of PyTorch has.
    PyTorch guards no variable of the environment either.
    """
    value = self.get(guard)
    is_replaced = value is os.environ or views.stand_in_of(value) is not None
    return None if is_replaced else original(self, guard)
