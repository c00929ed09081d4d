"""What a call of a compiled graph takes the host.

A GPU's host runs there what Dynamo, AOTAutograd and Inductor wrote or wrap around it, and so does
the bridge. Such functions are far shorter than a program's, so that they are not counted as calls
of such: entering a graph has a time of its own, by its guards and inputs, and so have the graph and
each launch in it. The program's own functions, before and behind a graph, are counted.

Dynamo's own functions, where a program enters it, are as many in every call: they are counted and
subtracted, so that every pause ends where it began.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from kernbench.torch_bridge.base.operation_timing import GraphRun
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.compiling import COMPILING, Views
from kernbench.torch_bridge.processes.process import HERE
from kernbench.torch_bridge.processes.python_calls import FRAMES_OF_FUNCTION, IN_THREAD, ThreadCalls

_OF_DEVICE = "device_of("
"""What guards of the bridge say, which a GPU build has in those of tensors."""
_CALLS_ENTERING = 13
"""What is counted of Dynamo's wrapper of a compiled function."""
_CALLS_PASSING = 5
"""The same of its wrapper of what it does not compile, as graphs are."""
_CALLS_TO_MODULE, _CALLS_FROM_MODULE = 9, 7
"""The same of a compiled module, and of leaving it."""
_CALLS_BEFORE_GRAPH = 17
"""The same between its last setting of the callback and the graph."""


@dataclass(slots=True)
class _Entry:
    """What is known of the entry to a graph: how many guards stand before it."""

    num_guards: int = 0


def install(patches: Patches, views: Views) -> None:
    """Give calls of what is compiled, and of graphs, their time."""
    from torch._dynamo import eval_frame
    from torch._dynamo.backends.common import AotAutograd
    from torch._dynamo.guards import CheckFunctionManager
    from torch._inductor.output_code import CompiledFxGraph
    from torch.autograd.function import BackwardCFunction

    unguarded: list[_Entry] = []
    patches.set(CompiledFxGraph, "__call__", unseen(_in_graph(CompiledFxGraph.__call__)))
    patches.wrap(AotAutograd, "__call__", _making_graphs, unguarded)
    patches.wrap(CheckFunctionManager, "__init__", _counting_guards, unguarded)
    for name in ("apply", "apply_boxed"):
        if hasattr(BackwardCFunction, name):
            patches.set(BackwardCFunction, name, _of_node(getattr(BackwardCFunction, name)))
    module = eval_frame.OptimizedModule
    # Dynamo follows its own function, and could not follow ours.
    views.over[module, "__call__"] = module.__call__
    patches.set(module, "__call__", _entering(module.__call__))
    patches.set(eval_frame, "_callback_from_stance", _going_on(eval_frame._callback_from_stance))


def _going_on(get_callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that Dynamo asks last before the program, or a graph, goes on."""

    def callback_from_stance(callback: Any) -> Any:
        calls = IN_THREAD.calls
        if calls is None:
            return get_callback(callback)
        calls.pause(_CALLS_PASSING if callback is None else _CALLS_ENTERING)
        try:
            return get_callback(callback)
        finally:
            calls.resume()

    return callback_from_stance


def _entering(call_module: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled module's call, whose way to the module and back is Dynamo's."""

    @wraps(call_module)
    def call(*args: Any, **kwargs: Any) -> Any:
        calls = IN_THREAD.calls
        if calls is None or COMPILING.depth:
            return call_module(*args, **kwargs)
        _leave_out(calls, _CALLS_TO_MODULE)
        try:
            return call_module(*args, **kwargs)
        finally:
            _leave_out(calls, _CALLS_FROM_MODULE)

    return call


def _leave_out(calls: ThreadCalls, num_calls: int) -> None:
    calls.pause(num_calls)
    calls.resume()


def _making_graphs(
    original: Callable[..., Any], unguarded: list[_Entry], *args: Any, **kwargs: Any
) -> Callable[..., Any]:
    entry = _Entry()
    unguarded.append(entry)
    return _entered(original(*args, **kwargs), entry)


def _counting_guards(
    original: Callable[..., Any], unguarded: list[_Entry], self: Any, *args: Any, **kwargs: Any
) -> None:
    """Initialize what holds guards, and tell the graphs behind them."""
    original(self, *args, **kwargs)
    num_guards = _num_guards(self.guard_manager.root)
    for entry in unguarded:
        entry.num_guards = num_guards
    unguarded.clear()


def _num_guards(manager: Any) -> int:
    texts = [leaf.verbose_code_parts() for leaf in manager.get_leaf_guards()]
    count = sum(not any(str(part).startswith(_OF_DEVICE) for part in parts) for parts in texts)
    below = list(manager.get_child_managers())
    if hasattr(manager, "get_key_value_managers"):
        for pair in manager.get_key_value_managers().values():
            below.extend(item for item in pair if item is not None)
    return count + sum(_num_guards(item) for item in below)


def _entered(graph: Callable[..., Any], entry: _Entry) -> Callable[..., Any]:
    """Return a graph within what AOTAutograd wraps around it, with the time of entering it."""

    @wraps(graph)
    def call(*args: Any, **kwargs: Any) -> Any:
        process, calls = HERE.process, IN_THREAD.calls
        if process is None or calls is None or COMPILING.depth:
            return graph(*args, **kwargs)
        calls.pause(_CALLS_BEFORE_GRAPH)
        process.host.owe_graph_call(entry.num_guards, args)
        try:
            return graph(*args, **kwargs)
        finally:
            calls.resume()

    return call


def _of_node(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Return a backward node's call, of which nothing is counted where it is of a graph."""

    @wraps(apply)
    def call(self: Any, *args: Any) -> Any:
        process, calls = HERE.process, IN_THREAD.calls
        if process is None or calls is None or not hasattr(self._forward_cls, "compiled_bw"):
            return apply(self, *args)
        calls.pause(FRAMES_OF_FUNCTION)
        process.host.owe_for("compiled_node_ps")
        try:
            return apply(self, *args)
        finally:
            calls.resume()

    return call


def _in_graph(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(self: Any, inputs: Any) -> Any:
        process = HERE.process
        if process is None or COMPILING.depth:
            return original(self, inputs)
        host = process.host
        before, host.graph = host.graph, GraphRun.of(self.fx_kwargs, inputs)
        try:
            result = original(self, inputs)
        finally:
            host.graph = before
        num_results = len(result) if isinstance(result, (list, tuple)) else 1
        host.owe_for("compiled_wrapper_ps", "compiled_output_ps", num_results)
        return result

    return call
