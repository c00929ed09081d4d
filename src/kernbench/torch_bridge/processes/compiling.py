"""Whose PyTorch shows: the bridge's, for a program that runs, or its own, for its compiler.

The bridge replaces functions of PyTorch, so that programs see simulated devices. The compiler knows
PyTorch's own functions: it has rules by function, and traces through them. So while something is
compiled, PyTorch's own are in the place of the bridge's, in the tables below. Locks and clocks are
then the real ones, and no calls are counted: compiling takes no simulated time.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch._higher_order_ops
import torch._library.triton
import torch.nn.attention.flex_attention as flex

from kernbench.torch_bridge.base.patches import MISSING, Patches, Replaced, set_own
from kernbench.torch_bridge.processes.call_counts import uncounted
from kernbench.torch_bridge.processes.process import HERE

_CONTROL_FLOW = ("utils", "scan", "foreach_map")
_OPERATORS = ("cond", "while_loop", "map_impl", "scan", "invoke_subgraph")
_HIDDEN_BUT: Mapping[Any, frozenset[str]] = {
    torch: frozenset({"set_autocast_enabled", "clear_autocast_cache", "compile", "_dynamo"}),
    torch.Tensor: frozenset({"_make_wrapper_subclass"}),
    torch.nn.Module: frozenset(),
    torch.nn.functional: frozenset(),
    # Graphs of backward passes are copied, with the numbers in them.
    torch.UntypedStorage: frozenset({"clone"}),
    torch._C._nested: frozenset(),
    flex: frozenset(),
    # A function in the package shadows the module of the same name.
    **{sys.modules[f"torch._higher_order_ops.{name}"]: frozenset() for name in _CONTROL_FLOW},
    **{type(getattr(torch.ops.higher_order, name)): frozenset() for name in _OPERATORS},
}
"""Owners of which PyTorch's own attributes show to the compiler, but for these."""
_HIDDEN: Mapping[Any, frozenset[str]] = {
    torch.cuda: frozenset({"StreamContext", "device", "device_of"}),
    torch._library.triton: frozenset({"wrap_triton_enabled_default"}),
}
"""Owners of which only these do."""


_LOST_GRADIENTS = r".*an autograd kernel was not registered"


class _Compiling(threading.local):
    depth = 0
    """Above 0 while the thread compiles."""


COMPILING = _Compiling()

_Shown = list[tuple[Any, str, Any]]
_Shows = Callable[[], AbstractContextManager[None]]


class Views:
    """Exchanges what shows of PyTorch, for the run that made ``patches``."""

    def __init__(
        self, patches: Patches, plain: _Shows = nullcontext, of_processes: _Shows = nullcontext
    ) -> None:
        self._patches = patches
        self._plain = plain
        """What else shows as the compiler knows it."""
        self._of_processes = of_processes
        """The same, as the program knows it, in the middle of that."""
        self.over: dict[tuple[Any, str], Any] = {}
        """What shows to the compiler in the place of both, by owner and name."""
        self._hidden: dict[tuple[Any, str], Replaced] = {}
        """What the compiler does not see, by owner and name."""
        self._stand_ins: dict[int, Any] = {}
        """What it does not see by the identity of what it sees: functions, and their code."""
        self._own: dict[int, Any] = {}
        """What it sees by the identity of what it does not: functions."""
        self._num_seen = 0
        """How many of the run's replacements were looked at."""
        self._of_runtime: _Shown = []
        """What is hidden now, while something is compiled."""

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Show PyTorch's own functions; this nests."""
        if COMPILING.depth:
            COMPILING.depth += 1
            try:
                yield
            finally:
                COMPILING.depth -= 1
            return
        with uncounted(), warnings.catch_warnings(), self._plain():
            # Without its kernel, an operation loses its gradient in silence.
            warnings.filterwarnings("error", message=_LOST_GRADIENTS)
            hidden, foreign = self._hide(), HERE.is_foreign
            COMPILING.depth, HERE.is_foreign = 1, True
            self._of_runtime = hidden
            try:
                yield
            finally:
                COMPILING.depth, HERE.is_foreign = 0, foreign
                self._of_runtime = []
                _show(hidden)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show the bridge's functions in the middle of compiling, to try something on a device."""
        depth, COMPILING.depth = COMPILING.depth, 0
        foreign, HERE.is_foreign = HERE.is_foreign, False
        of_runtime, self._of_runtime = self._of_runtime, []
        of_compiler = [(owner, name, _own(owner, name)) for owner, name, _ in of_runtime]
        _show(of_runtime)
        try:
            with self._of_processes():
                yield
        finally:
            _show(of_compiler)
            self._of_runtime = of_runtime
            COMPILING.depth, HERE.is_foreign = depth, foreign

    def stand_in_of(self, value: Any) -> Any:
        """Return the bridge's in the place of a function of PyTorch, or of its code, or None."""
        return self._stand_ins.get(id(value))

    def own_of(self, value: Any) -> Any:
        """Return PyTorch's own in the place of a function of the bridge, and all else as it is."""
        return self._own.get(id(value), value)

    def _hide(self) -> _Shown:
        """Show PyTorch's own attributes; return what showed before, the last one first."""
        replaced = self._patches.replaced
        for item in replaced[self._num_seen :]:
            if _is_hidden(item.owner, item.name):
                # Of several replacements of one attribute, the first one has PyTorch's own.
                before = self._hidden.get((item.owner, item.name), item).before
                self._hidden[item.owner, item.name] = replace(item, before=before)
                self._put_in_place(before, item.value)
        self._num_seen = len(replaced)
        shown: _Shown = []
        for (owner, name), entry in self._hidden.items():
            # What the program itself has put there stays.
            if _own(owner, name) is entry.value:
                shown.append((owner, name, entry.value))
                set_own(owner, name, entry.before)
        for (owner, name), value in self.over.items():
            before = _own(owner, name)
            shown.append((owner, name, before))
            hidden = self._hidden.get((owner, name))
            self._put_in_place(value, before if hidden is None else hidden.value)
            set_own(owner, name, value)
        return shown[::-1]

    def _put_in_place(self, seen: Any, stand_in: Any) -> None:
        """Note what the program sees in the place of what the compiler does."""
        self._stand_ins[id(seen)] = stand_in
        if callable(stand_in) and callable(seen):
            self._own[id(stand_in)] = seen
        if hasattr(seen, "__code__"):
            self._stand_ins[id(seen.__code__)] = getattr(stand_in, "__code__", None)


def _is_hidden(owner: Any, name: str) -> bool:
    try:
        kept = _HIDDEN_BUT.get(owner)
        return name not in kept if kept is not None else name in _HIDDEN.get(owner, ())
    except TypeError:  # An owner that cannot be hashed.
        return False


def _own(owner: Any, name: str) -> Any:
    return vars(owner).get(name, MISSING)


def _show(values: _Shown) -> None:
    for owner, name, value in values:
        set_own(owner, name, value)
