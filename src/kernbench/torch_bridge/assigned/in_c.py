"""State that Python keeps in C, where only calls show that a process sets it."""

from __future__ import annotations

import abc
import asyncio
import calendar
import codecs
import csv
import faulthandler
import gc
import locale
import multiprocessing.context
import os
import resource
import socket
import sys
import syslog
import threading
import time
import tracemalloc
from collections.abc import Callable, Hashable
from functools import partial, wraps
from multiprocessing import forkserver, spawn
from typing import Any

import torch

from kernbench.clock import user_site
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.process import HERE

_abc: Any = sys.modules["_abc"]
_register_error, _lookup_error = codecs.register_error, codecs.lookup_error
_set_umask = os.umask
_set_locale, _limit_fields = locale.setlocale, csv.field_size_limit
_register_dialect, _unregister_dialect = csv.register_dialect, csv.unregister_dialect
_register_search, _unregister_search = codecs.register, codecs.unregister


def _umask() -> int:
    mask = _set_umask(0)
    _set_umask(mask)
    return mask


def _policy() -> Any:
    return vars(asyncio.events)["_event_loop_policy"]


_default: Any = vars(multiprocessing.context)["_default_context"]
_set_start = partial(setattr, _default, "_actual_context")
_start = "start method", lambda: _default._actual_context, _set_start
_set_threshold, _num_threads = gc.set_threshold, torch.set_num_threads
_set_digits, _set_timeout = sys.set_int_max_str_digits, socket.setdefaulttimeout
_set_policy = asyncio.set_event_loop_policy
_sparse: Any = torch.sparse.check_sparse_tensor_invariants


def _either(one: Callable[[], object], other: Callable[[], object]) -> Callable[[bool], object]:
    return lambda wanted: (one if wanted else other)()


_collecting = "collecting", gc.isenabled, _either(gc.enable, gc.disable)
_checked = "sparse", _sparse.is_enabled, _either(_sparse.enable, _sparse.disable)
_forkserver: Any = vars(forkserver)["_forkserver"]
_preload = lambda: _forkserver._preload_modules, forkserver.set_forkserver_preload
_Row = tuple[Any, str, str, Callable[[], Any], Callable[[Any], object]]
_SETTINGS: tuple[_Row, ...] = (
    (sys, "setrecursionlimit", "recursion", sys.getrecursionlimit, sys.setrecursionlimit),
    (sys, "set_int_max_str_digits", "digits", sys.get_int_max_str_digits, _set_digits),
    (sys, "setdlopenflags", "libraries", sys.getdlopenflags, sys.setdlopenflags),
    (sys, "setswitchinterval", "switches", sys.getswitchinterval, sys.setswitchinterval),
    (gc, "set_debug", "debugging collections", gc.get_debug, gc.set_debug),
    (gc, "set_threshold", "collections", gc.get_threshold, lambda counts: _set_threshold(*counts)),
    (gc, "disable", *_collecting),
    (gc, "enable", *_collecting),
    (multiprocessing, "set_executable", "program", spawn.get_executable, spawn.set_executable),
    (multiprocessing, "set_forkserver_preload", "preloaded", *_preload),
    (multiprocessing, "set_start_method", *_start),
    (torch.multiprocessing, "set_start_method", *_start),
    (torch, "set_num_threads", "threads", torch.get_num_threads, _num_threads),
    (socket, "setdefaulttimeout", "timeouts", socket.getdefaulttimeout, _set_timeout),
    (csv, "field_size_limit", "fields", _limit_fields, _limit_fields),
    (locale, "setlocale", "locale", *2 * (partial(_set_locale, locale.LC_ALL),)),
    (os, "umask", "umask", _umask, _set_umask),
    # Zero asks for it.
    (syslog, "setlogmask", "messages", partial(syslog.setlogmask, 0), syslog.setlogmask),
    (threading, "setprofile", "profiles", threading.getprofile, threading.setprofile),
    (threading, "settrace", "traces", threading.gettrace, threading.settrace),
    (threading, "stack_size", "stacks", threading.stack_size, threading.stack_size),
    (calendar, "setfirstweekday", "week", calendar.firstweekday, calendar.setfirstweekday),
    (_sparse, "enable", *_checked),
    (_sparse, "disable", *_checked),
    (asyncio, "set_event_loop_policy", "loops", _policy, _set_policy),
    (asyncio.events, "set_event_loop_policy", "loops", _policy, _set_policy),
)
"""Functions that set something: owner, name, what they set, and how that is read and written."""
_FOR_ALL: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (asyncio, ("set_child_watcher",)),
    (faulthandler, ("disable", "enable")),
    (gc, ("freeze", "unfreeze")),
    (os, ("nice", "putenv", "sched_setaffinity", "setpriority", "unsetenv")),
    (resource, ("setrlimit",)),
    (sys, ("addaudithook",)),
    (syslog, ("closelog", "openlog")),
    (time, ("tzset",)),
    (torch.monitor, ("register_event_handler",)),
    (tracemalloc, ("start", "stop")),
)
"""Functions that set what the operating system or Python's C has once for the real process."""


class Setting:
    """A piece of state that a process has set: how it is read and written."""

    is_unread = False

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], object]) -> None:
        self._get = get
        self._put = put
        self._base = self._value = get()
        """What all have; what the process has, while that is not shown."""
        self._is_shown = True

    def show(self) -> None:
        """Show the process's value."""
        if not self._is_shown:
            self._is_shown = True
            self._base = self._get()
            self._put(self._value)

    def hide(self) -> bool:
        """Show what all have, and return whether the process still has something else."""
        if self._is_shown:
            self._is_shown = False
            self._value = self._get()
            if self._value != self._base:
                self._put(self._base)
        return bool(self._value != self._base)

    def copy(self) -> Setting:
        """Return the same for another process."""
        copied = Setting(self._get, self._put)
        copied._is_shown = False
        copied._base = self._base
        copied._value = self._get() if self._is_shown else self._value
        return copied

    def is_own_in_place_of_alls(self) -> bool:
        """Return False: a module that is imported for all may need it."""
        return False


Begin = Callable[[Hashable, Callable[[], Setting]], object]
"""Called before a process sets something: with its name, and what makes the setting."""


def tell_of_calls(begin: Begin, patches: Patches) -> None:
    """Call ``begin`` before functions set their state, until ``patches`` closes."""

    def tell(owner: Any, name: str, state: str, get: Any, put: Any) -> None:
        """Tell of a function whose state is read and written by ``get`` and ``put``."""
        function = getattr(owner, name)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            begin(state, partial(Setting, get, put))
            return function(*args, **kwargs)

        patches.set(owner, name, unseen(call))

    for row in (*_SETTINGS, _interop_threads(patches)):
        tell(*row)
    for name in ("register_dialect", "unregister_dialect"):
        tell(csv, name, "dialects", _dialects, _put_dialects)
    _tell_of_codecs(begin, patches)
    register_class = abc.ABCMeta.register

    def register_subclass(cls: Any, subclass: Any) -> Any:
        get, put = partial(_registered_with, cls), partial(_put_subclasses, cls)
        begin(("abstract class", cls), partial(Setting, get, put))
        return register_class(cls, subclass)

    patches.set(abc.ABCMeta, "register", unseen(register_subclass))


def _interop_threads(patches: Patches) -> _Row:
    """Return the row of a setting that C++ takes once: it is only told again."""
    count = torch.get_num_interop_threads()

    def put(wanted: int) -> None:
        nonlocal count
        count = wanted

    patches.set(torch, "get_num_interop_threads", unseen(lambda: count))
    patches.set(torch, "set_num_interop_threads", unseen(put))
    return torch, "set_num_interop_threads", "interop", torch.get_num_interop_threads, put


def say_of_calls(say: Callable[[str], object], patches: Patches) -> None:
    """Call ``say`` with each function that is called and sets something for all processes."""

    def tell(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if HERE.process is not None and not HERE.is_foreign and not HERE.is_importing:
                say(f"{owner.__name__}.{name}() at {user_site()}")
            return function(*args, **kwargs)

        patches.set(owner, name, unseen(call))

    for owner, names in _FOR_ALL:
        for name in names:
            tell(owner, name)


def _tell_of_codecs(begin: Begin, patches: Patches) -> None:
    searches: list[Any] = []
    """Functions that look for codecs, of the running process."""

    def put_searches(wanted: list[Any]) -> None:
        for item in searches:
            _unregister_search(item)
        searches[:] = wanted
        for entry in searches:
            _register_search(entry)

    def register(search: Any) -> None:
        begin("codecs", partial(Setting, searches.copy, put_searches))
        _register_search(search)
        searches.append(search)

    def unregister(search: Any) -> None:
        begin("codecs", partial(Setting, searches.copy, put_searches))
        _unregister_search(search)
        if search in searches:
            searches.remove(search)

    def register_error(name: str, handler: Any) -> None:
        get, put = partial(_handler_of, name), partial(_register_error, name)
        begin(("errors of codecs", name), partial(Setting, get, put))
        _register_error(name, handler)

    patches.set(codecs, "register", unseen(register))
    patches.set(codecs, "unregister", unseen(unregister))
    patches.set(codecs, "register_error", unseen(register_error))


def _dialects() -> dict[str, Any]:
    return {name: csv.get_dialect(name) for name in csv.list_dialects()}


def _put_dialects(dialects: dict[str, Any]) -> None:
    for name in csv.list_dialects():
        _unregister_dialect(name)
    for name, dialect in dialects.items():
        _register_dialect(name, dialect)


def _handler_of(name: str) -> Any:
    try:
        return _lookup_error(name)
    except LookupError as error:
        return partial(_raise, error.args)


def _raise(words: tuple[Any, ...], _: Any) -> None:
    """Handle an encoding error as where nobody has registered a handler."""
    raise LookupError(*words)


def _registered_with(cls: Any) -> set[Any]:
    result: set[Any] = _abc._get_dump(cls)[0]
    return result


def _put_subclasses(cls: Any, references: set[Any]) -> None:
    _abc._reset_registry(cls)
    for kind in cls.__mro__:
        if "_abc_impl" in vars(kind):
            _abc._reset_caches(kind)
    for reference in references:
        subclass = reference()
        if subclass is not None:
            _abc._abc_register(cls, subclass)
