"""State that a real process has once, exchanged when another simulated process resumes.

Switches of PyTorch's C++ are some of it (ADR-0214). There are dozens of them, and most programs set
few, so they are not read when ranks take turns: what a process has set is noted as it sets it, and
set again where another process differs.
"""

from __future__ import annotations

import concurrent.futures.thread as executors
import copy
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, wraps
from types import ModuleType
from typing import Any

import torch
import torch._tensor_str as tensor_str
import torch.distributed.tensor._random as dtensor_random
from torch.backends import ContextProp
from torch.distributed.tensor import DTensor

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.random_numbers import NumpyRandom, PythonRandom, TorchRandom
from kernbench.torch_bridge.processes.process import Process

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
            self._now = self._met.setdefault(tuple(map(_hashable, calls)), calls)
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


def _hashable(call: Call) -> Call:
    """Return a call that equal ones are equal to: an order of priority is a list."""
    name, args, named = call
    return name, tuple(tuple(item) if isinstance(item, list) else item for item in args), named


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
    for name in _names():
        setter = f"_set_{name}"
        # One that takes arguments shows no switch; None is what nobody has chosen.
        with suppress(RuntimeError, TypeError):
            result = getattr(cxx, f"_get_{name}")()
            args = result if isinstance(result, tuple) else (result,)
            if result is not None:
                yield _part_of(setter), (setter, args, ())
    for backend, operation in _PRECISIONS:
        with suppress(RuntimeError):
            value = cxx._get_fp32_precision_getter(backend, operation)
            yield "precision", (_SET_PRECISION, (backend, operation, value), ())


@cache
def _names() -> list[str]:
    """Return what C++ has a setter and a getter of: found once for all runs of a real process."""
    # Those of precision change each other: in this order.
    setters = dict.fromkeys((*(f"_set_{name}" for name in _OF_PRECISION), *dir(torch._C)))
    names = [name.removeprefix("_set_") for name in setters if name.startswith("_set_")]
    others = (*_OF_THREADS, *_OF_CUDA, _SET_DETERMINISTIC.removeprefix("_set_"))
    return [name for name in names if name not in others and hasattr(torch._C, f"_get_{name}")]


@dataclass(frozen=True, slots=True)
class Global:
    """One piece of state, with how to read, write and inherit it.

    What is read is the same object as before as long as nothing has changed, where that is cheap:
    processes with the same object need no exchange.
    """

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], None]
    copy: Callable[[Any], Any] = lambda value: value
    """Makes a new process's value from its parent's."""
    is_passed_on: bool = True
    """Whether a spawned process begins with its parent's value; a forked one always does."""


class _AttentionKinds:
    """Which kinds of attention a process allows (``sdpa_kernel``): flags of C++."""

    KINDS = ("flash", "mem_efficient", "cudnn", "overrideable", "math")

    def __init__(self) -> None:
        self._allowed: tuple[bool, ...] = ()

    def get(self) -> tuple[bool, ...]:
        cxx: Any = torch._C
        allowed = (
            cxx._get_flash_sdp_enabled(),
            cxx._get_mem_efficient_sdp_enabled(),
            cxx._get_cudnn_sdp_enabled(),
            cxx._get_overrideable_sdp_enabled(),
            cxx._get_math_sdp_enabled(),
        )
        if allowed != self._allowed:
            self._allowed = allowed
        return self._allowed

    def put(self, allowed: tuple[bool, ...]) -> None:
        for kind, is_allowed in zip(self.KINDS, allowed, strict=True):
            getattr(torch._C, f"_set_sdp_use_{kind}")(is_allowed)
        self._allowed = allowed


class _WorkingFolder:
    """The working directory; None once it was deleted."""

    def __init__(self) -> None:
        self._now: str | None = None

    def get(self) -> str | None:
        try:
            now = os.getcwd()  # noqa: PTH109 - a Path would take ten times as long
        except FileNotFoundError:
            now = None
        if now != self._now:
            self._now = now
        return self._now

    def put(self, folder: str | None) -> None:
        if folder is not None and folder != self._now:
            with suppress(OSError):  # deleted, too
                os.chdir(folder)


class _Streams:
    """``sys.stdout`` and ``sys.stderr``, which a program may replace.

    The command's progress bar replaces them as well, by what stands for those that it found.
    """

    NAMES = ("stdout", "stderr")

    def __init__(self) -> None:
        self._last: tuple[Any, ...] = (None, None)

    def get(self) -> tuple[Any, ...]:
        out, err = _behind_bar(sys.stdout), _behind_bar(sys.stderr)
        last_out, last_err = self._last
        if out is not last_out or err is not last_err:
            self._last = out, err
        return self._last

    def put(self, streams: tuple[Any, ...]) -> None:
        for name, stream in zip(self.NAMES, streams, strict=True):
            if _behind_bar(getattr(sys, name)) is not stream:
                setattr(sys, name, stream)


def _behind_bar(stream: Any) -> Any:
    # Not by hasattr: whatever it does not find costs an exception.
    is_of_bar = "rich_proxied_file" in type(stream).__dict__
    return stream.rich_proxied_file if is_of_bar else stream


class _Shown:
    """Module-level state of Python and DTensor: modules, and attributes."""

    def __init__(self) -> None:
        # loss_parallel() edits its table in place.
        self._dispatcher: Any = DTensor._op_dispatcher

    def get(self) -> tuple[Any, ...]:
        modules = sys.modules
        return (
            sys.argv,
            sys.path,
            sys.excepthook,
            modules.get("__main__"),
            modules.get("__mp_main__"),
            dtensor_random._rng_tracker,
            self._dispatcher._custom_op_handlers,
            executors._shutdown,
        )

    def put(self, shown: tuple[Any, ...]) -> None:
        argv, path, excepthook, main, mp_main, tracker, handlers, is_shut = shown
        # Into their dictionaries: an assignment would be noted.
        vars(sys).update(argv=argv, path=path, excepthook=excepthook)
        vars(executors)["_shutdown"] = is_shut
        vars(dtensor_random)["_rng_tracker"] = tracker
        for name, module in (("__main__", main), ("__mp_main__", mp_main)):
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
        self._dispatcher._custom_op_handlers = handlers

    def copy(self, shown: tuple[Any, ...]) -> tuple[Any, ...]:
        argv, path, *rest, handlers, is_shut = shown
        return (argv.copy(), path.copy(), *rest, dict(handlers), is_shut)


class _Settings:
    """What programs set in Python's modules for their process, and for a while."""

    def get(self) -> tuple[Any, ...]:
        return warnings.filters, tensor_str.PRINT_OPTS

    def put(self, settings: tuple[Any, ...]) -> None:
        vars(warnings)["filters"], vars(tensor_str)["PRINT_OPTS"] = settings

    def copy(self, settings: tuple[Any, ...]) -> tuple[Any, ...]:
        filters, options = settings
        return filters.copy(), copy.copy(options)


def known_globals(switches: Switches) -> tuple[Global, ...]:
    """Return all state that is exchanged."""
    torch_random, python_random, numpy_random = TorchRandom(), PythonRandom(), NumpyRandom()
    shown, kinds, settings = _Shown(), _AttentionKinds(), _Settings()
    folder, streams = _WorkingFolder(), _Streams()
    return (
        Global("torch random numbers", torch_random.get, torch_random.put, is_passed_on=False),
        Global("Python random numbers", python_random.get, python_random.put),
        Global("numpy random numbers", numpy_random.get, numpy_random.put, numpy_random.copy),
        Global(
            "default dtype", torch.get_default_dtype, torch.set_default_dtype, is_passed_on=False
        ),
        Global("kinds of attention", kinds.get, kinds.put, is_passed_on=False),
        Global("switches", switches.get, switches.put, is_passed_on=False),
        Global("settings", settings.get, settings.put, settings.copy, is_passed_on=False),
        Global("working directory", folder.get, folder.put),
        Global("streams", streams.get, streams.put),
        Global("modules and attributes", shown.get, shown.put, shown.copy),
    )


class Globals:
    """Exchanges state: the real process holds the values of one simulated process at a time."""

    def __init__(self, base: Process) -> None:
        self._switches = Switches()
        self._known = known_globals(self._switches)
        self._loaded = base
        self._first: dict[str, Any] = {}
        """The values with which the run began."""
        self._processes: list[Process] = []

    def install(self, patches: Patches) -> None:
        """Note what is set from now on, where it is not read when processes take turns."""
        self._switches.install(patches)

    def begin(self) -> None:
        """Take the current values for those with which processes begin that inherit none."""
        self._first = {item.name: item.copy(item.get()) for item in self._known}

    def start(self, process: Process, is_forked: bool) -> None:
        """Give a new process its values: its parent's, or as a spawned one has them."""
        self._processes.append(process)
        for item in self._known:
            inherits = is_forked or item.is_passed_on
            process.saved[item.name] = item.copy(item.get() if inherits else self._first[item.name])

    def end(self) -> None:
        """Set what the run began with, but for what whoever runs it restores."""
        for item in self._known:
            if not item.is_passed_on:
                item.put(self._first[item.name])
        for process in self._processes:
            process.leave()
        # Ranks that have not ended are ended after it, and show nobody's.
        self._known = ()

    def load(self, process: Process) -> None:
        """Make a process's values current, and save those of the previous one."""
        before = self._loaded
        if before is process:
            return
        saved, wanted = before.saved, process.saved
        for item in self._known:
            name = item.name
            saved[name] = now = item.get()
            value = wanted[name]
            if value is not now:
                item.put(value)
        self._loaded = process
