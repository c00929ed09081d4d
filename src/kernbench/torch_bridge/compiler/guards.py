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

    patches.set(GuardBuilder, "TENSOR_MATCH", _also_by_device(GuardBuilder.TENSOR_MATCH))
    by_id = _also_as_it_runs(GuardBuilder.id_match_unchecked, views)
    patches.set(GuardBuilder, "id_match_unchecked", by_id)
    patches.set(Guard, "create", _but_of_stand_ins(Guard.create, views))
    patches.set(VariableBuilder, "_wrap", _as_its_own(VariableBuilder._wrap, views))
    patches.set(GuardBuilder, "TYPE_MATCH", _but_of_replaced(GuardBuilder.TYPE_MATCH, views))
    patches.set(CheckFunctionManager, "__init__", _of_rank(CheckFunctionManager.__init__))
    counts = _counting_own(convert_frame.compute_cache_size)
    patches.set(convert_frame, "compute_cache_size", counts)
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


def _of_rank(original: Callable[..., None]) -> Callable[..., None]:
    """Return the initializer of what holds guards, which notes whose they are."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.guard_manager.kernbench_rank = current().rank

    return init


def _counting_own(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what counts compiled versions of a function, which counts those of the rank."""

    @functools.wraps(original)
    def compute_cache_size(frame: Any, entries: Any, *total: int) -> Any:
        rank = current().rank
        own = [
            entry
            for entry in entries
            if getattr(entry.guard_manager, "kernbench_rank", rank) == rank
        ]
        return original(frame, own, *(len(own) for _ in total))

    return compute_cache_size


def _also_by_device(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def match(self: Any, guard: Any, value: Any = None) -> Any:
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

    return match


def _also_as_it_runs(original: Callable[..., Any], views: Views) -> Callable[..., Any]:
    """Return the guard of what an object is, which the bridge's stand-in for it passes too.

    The guards of ``torch.arange`` are made while PyTorch's own shows, and asked while it does not.
    """

    @functools.wraps(original)
    def match(self: Any, guard: Any, *hint: Any) -> Any:
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

    return match


def _as_its_own(original: Callable[..., Any], views: Views) -> Callable[..., Any]:
    """Return what takes a program's value into a graph: a function of the bridge as PyTorch's own.

    A program that has taken it out of PyTorch's module (``from torch import zeros_like``) holds it.
    """

    @functools.wraps(original)
    def wrap(self: Any, value: Any) -> Any:
        return original(self, plain_where_compiled(views.own_of(value)))

    return wrap


def _but_of_stand_ins(original: Callable[..., Any], views: Views) -> Callable[..., Any]:
    """Return how guards are made, without those of parts of functions with a stand-in.

    Default values and cells of the one are not those of the other.
    """

    @functools.wraps(original)
    def create(self: Any, builder: Any) -> Any:
        source = getattr(self.originating_source, "base", None)
        while source is not None:
            seen = builder.get(source)
            if views.stand_in_of(seen) is not None or views.own_of(seen) is not seen:
                return None
            source = getattr(source, "base", None)
        return original(self, builder)

    return create


def _but_of_replaced(original: Callable[..., Any], views: Views) -> Callable[..., Any]:
    """Return the guard of an object's class, without those of ``os.environ`` and of stand-ins.

    They have another class while something is compiled, as ``flex_attention_hop`` of PyTorch has.
    PyTorch guards no variable of the environment either.
    """

    @functools.wraps(original)
    def match(self: Any, guard: Any) -> Any:
        value = self.get(guard)
        is_replaced = value is os.environ or views.stand_in_of(value) is not None
        return None if is_replaced else original(self, guard)

    return match
