"""Switches of PyTorch's C++, one set per process: each simulated process has its own (ADR-0214).

There are dozens of them, and most programs set few, so they are not read when ranks take turns:
what a process has set is noted as it sets it, and set again where another process differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from types import ModuleType
from typing import Any

import torch
from torch.backends import ContextProp

from kernbench.torch_bridge.base.patches import Patches

Call = tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]]
"""A setter's name, and what it was called with."""

_OF_THREADS = frozenset(("thread_name", "torch_function_state"))
"""Switches that each thread has for itself."""
_OF_PRECISION = (
    *("float32_matmul_precision", "cublas_allow_tf32", "cudnn_allow_tf32"),
    *(f"cublas_allow_{kind}_reduced_precision_reduction" for kind in ("fp16", "bf16")),
)
"""Switches that ``_set_NAME`` sets and ``_get_NAME`` shows; setting one of them changes others."""
_OF_CUDA = ("linalg_preferred_backend", "blas_preferred_backend")
"""Likewise, of libraries that only builds for CUDA have: others refuse to prefer one."""
_PRECISIONS = (
    ("generic", "all"),
    *(("cuda", name) for name in ("all", "matmul", "conv", "rnn")),
    *(("mkldnn", name) for name in ("all", "matmul", "conv", "rnn")),
)
_SET_PRECISION = "_set_fp32_precision_setter"
_SET_DETERMINISTIC, _SET_ANOMALY = "_set_deterministic_algorithms", "set_anomaly_enabled"


class Switches:
    """What the current process has set, with how to read it and to set another's."""

    def __init__(self) -> None:
        self._now: tuple[Call, ...] = ()
        """The last call of each setter, the latest last."""
        self._met: dict[tuple[Call, ...], tuple[Call, ...]] = {(): ()}
        """All that were met: processes that have set the same have the same object."""
        self._setters: dict[str, Callable[..., Any]] = {}
        self._first: dict[str, list[Call]] = {}
        """Calls that set what was set when the run began, by the part that they are of."""

    def install(self, patches: Patches) -> None:
        """Note from now on what is set, and set at the end what was set before."""
        for part, call in _present():
            self._first.setdefault(part, []).append(call)
            name = call[0]
            if name not in self._setters:
                owner = torch if name == _SET_ANOMALY else torch._C
                self._setters[name] = getattr(owner, name)
                patches.set(owner, name, self._noting(name))
        for item in _OF_CUDA:
            self._keep(item, patches)
        for module in (torch.backends.cudnn, torch.backends.miopen, torch.backends.mkldnn):
            self._note_properties(module, patches)
        patches.on_close(self.put, ())

    def get(self) -> tuple[Call, ...]:
        """Return what the current process has set."""
        return self._now

    def put(self, wanted: tuple[Call, ...]) -> None:
        """Set what another process has set, and nothing else."""
        for part in dict.fromkeys(_part_of(call[0]) for call in self._now):
            self._call(self._first[part])
        self._call(wanted)
        self._now = wanted

    def _call(self, calls: Any) -> None:
        for name, args, named in calls:
            self._setters[name](*args, **dict(named))

    def _keep(self, switch: str, patches: Patches) -> None:
        """Keep what is set of a switch that C++ may refuse, and show it."""
        setter, getter = f"_set_{switch}", f"_get_{switch}"
        first = getattr(torch._C, getter)()
        self._first[setter] = [(setter, (first,), ())]
        self._setters[setter] = lambda value: None
        patches.set(torch._C, setter, self._noting(setter))

        def shown() -> Any:
            chosen = (args[0] for name, args, _ in self._now if name == setter)
            return next(chosen, first)

        patches.set(torch._C, getter, shown)

    def _note_properties(self, module: ModuleType, patches: Patches) -> None:
        """Note what is set by a module's attributes, which hold C++'s own functions."""
        by_setter = {setter: name for name, setter in self._setters.items()}
        for item in vars(type(module)).values():
            if isinstance(item, ContextProp) and item.setter in by_setter:
                patches.set(item, "setter", self._noting(by_setter[item.setter]))

    def _noting(self, name: str) -> Callable[..., Any]:
        original = self._setters[name]

        @wraps(original)
        def put(*args: Any, **named: Any) -> Any:
            result = original(*args, **named)
            call = name, args, tuple(named.items())
            key = _key_of(call)
            calls = (*(triple for triple in self._now if _key_of(triple) != key), call)
            self._now = self._met.setdefault(calls, calls)
            return result

        return put


def _part_of(name: str) -> str:
    """Return the part whose first values are set together."""
    is_precise = name == _SET_PRECISION or name.removeprefix("_set_") in _OF_PRECISION
    return "precision" if is_precise else name


def _key_of(call: Call) -> tuple[Any, ...]:
    """Return what a call sets: a later call of the same key takes its place."""
    name, args, _ = call
    return (name, *args[:2]) if name == _SET_PRECISION else (name,)


def _present() -> Iterator[tuple[str, Call]]:
    """Yield calls that would set what is set now, each with its part.

    Not every release has all switches, and some do not say what they are while others disagree.
    """
    cxx: Any = torch._C
    is_deterministic = cxx._get_deterministic_algorithms()
    only_warns = ("warn_only", cxx._get_deterministic_algorithms_warn_only())
    yield _SET_DETERMINISTIC, (_SET_DETERMINISTIC, (is_deterministic,), (only_warns,))
    of_anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    yield _SET_ANOMALY, (_SET_ANOMALY, of_anomaly, ())
    # Those of precision change each other: in this order.
    for setter in dict.fromkeys((*(f"_set_{name}" for name in _OF_PRECISION), *dir(cxx))):
        name = setter.removeprefix("_set_")
        getter = getattr(cxx, f"_get_{name}", None)
        is_other = name in _OF_THREADS or name in _OF_CUDA or setter == _SET_DETERMINISTIC
        if name == setter or getter is None or is_other:
            continue
        # One that takes arguments shows no switch; None is what nobody has chosen.
        with suppress(RuntimeError, TypeError):
            result = getter()
            args = result if isinstance(result, tuple) else (result,)
            if result is not None:
                yield _part_of(setter), (setter, args, ())
    for backend, operation in _PRECISIONS:
        with suppress(RuntimeError):
            value = cxx._get_fp32_precision_getter(backend, operation)
            yield "precision", (_SET_PRECISION, (backend, operation, value), ())
