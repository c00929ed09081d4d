"""``os.environ`` and ``os.environb`` with one set of variables per simulated process."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.call_counts import unseen
from kernbench.torch_bridge.processes.float32 import OVERRIDE, asked
from kernbench.torch_bridge.processes.process import HERE
from kernbench.torch_bridge.processes.python_calls import FRAMES_OF_FUNCTION, IN_THREAD

_base: Any = type(os.environ)
_execute_really: Any = vars(subprocess.Popen)["_execute_child"]


def _all_at_once(kind: type[Any]) -> type[Any]:
    """Return a kind of view that yields all at once, so that no call is counted per variable."""

    def everything(self: Any) -> Iterator[Any]:
        return iter(list(kind.__iter__(self)))

    return type(kind.__name__, (kind,), {"__slots__": (), "__iter__": unseen(everything)})


_Keys, _Items, _Values = map(_all_at_once, (KeysView, ItemsView, ValuesView))


class _ProcessEnviron(_base):
    """Replaces the class of ``os.environ`` and ``os.environb``, whose objects stay the same.

    Reading or replacing all of it takes as many calls whatever it holds: that is the
    shell's, and two runs of one command are equal (ADR-0284). A single variable takes what it
    takes in Python.
    """

    @property
    def _data(self) -> dict[Any, Any]:
        process = HERE.process
        return self.__dict__["_data"] if process is None else process.environ

    def __getitem__(self, key: str) -> Any:
        process = HERE.process
        # A copy looks up the very names that it has read; a program's own are other objects.
        is_of_all = type(key) is str and self._names.get(key) is key
        calls = IN_THREAD.calls if is_of_all else None
        if calls is not None:
            calls.pause(FRAMES_OF_FUNCTION)
        try:
            data = self.__dict__["_data"] if process is None else process.environ
            return self.decodevalue(data[self.encodekey(key)])
        except KeyError:
            raise KeyError(key) from None
        finally:
            if calls is not None:
                calls.resume()

    @unseen
    def __iter__(self) -> Iterator[str]:
        return iter([self._names.setdefault(name, name) for name in _base.__iter__(self)])

    def keys(self) -> Any:
        return _Keys(self)

    def items(self) -> Any:
        return _Items(self)

    def values(self) -> Any:
        return _Values(self)

    update = unseen(_base.update, is_python=True)
    clear = unseen(_base.clear, is_python=True)

    def __setitem__(self, key: str, value: str) -> None:
        # Without putenv: C code sees the environment of the real process.
        self._data[self.encodekey(key)] = self.encodevalue(value)
        _notice(key)

    def __delitem__(self, key: str) -> None:
        try:
            del self._data[self.encodekey(key)]
        except KeyError:
            raise KeyError(key) from None
        _notice(key)


@contextmanager
def plain() -> Iterator[None]:
    """Let ``os.environ`` be of Python's own class, with the caller's variables, for the compiler.

    That follows functions of the class, and could not follow ours.
    """
    environ: Any = os.environ
    process, before = HERE.process, environ.__class__
    if process is None or before is _base:
        yield
        return
    kept = environ.__dict__["_data"]
    environ.__class__ = _base
    environ._data = process.environ
    try:
        yield
    finally:
        environ._data = kept
        environ.__class__ = before


@contextmanager
def of_processes() -> Iterator[None]:
    """Let it be the program's again, in the middle of :func:`plain`."""
    environ: Any = os.environ
    before = environ.__class__
    environ.__class__ = _ProcessEnviron
    try:
        yield
    finally:
        environ.__class__ = before


def _notice(key: str) -> None:
    """Price products anew where a variable decides their precision.

    NVIDIA's libraries read it when they are loaded, at the first product; here it counts at once.
    """
    if key == OVERRIDE and HERE.process is not None:
        HERE.process.price(asked())


def variables() -> dict[Any, Any]:
    """Return a copy of the caller's variables, encoded."""
    return dict(os.environ._data)  # type: ignore[attr-defined]


def encoded(values: Mapping[str, str]) -> dict[Any, Any]:
    """Return variables encoded as ``os.environ`` keeps them."""
    environ: Any = os.environ
    return {environ.encodekey(k): environ.encodevalue(v) for k, v in values.items()}


def install(patches: Patches) -> None:
    """Give every process its own environment variables."""
    environs: list[Any] = [os.environ, *([os.environb] if os.supports_bytes_environ else ())]
    for environ in environs:
        patches.set(environ, "_names", {})
        patches.on_close(setattr, environ, "__class__", environ.__class__)
        environ.__class__ = _ProcessEnviron
    patches.set(subprocess.Popen, "_execute_child", _execute_child)


def _execute_child(
    self: Any, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any,
    cwd: Any, env: Any, *rest: Any,
) -> None:  # fmt: skip
    """``subprocess.Popen``: without variables of its own, it inherits those of the caller."""
    process = HERE.process
    if process is not None:
        env = dict(os.environ) if env is None else env
        if (program := _python_program(args)) is not None and not HERE.is_foreign:
            process.session.outside[program] = None
    _execute_really(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)


def _python_program(args: Any) -> str | None:
    """Return the file or module that a command has Python run; None if it is a library's, or not.

    >>> _python_program(["/usr/bin/python3", "-u", "work/train.py", "--lr=1"])
    'train.py'
    >>> _python_program(["python", "-m", "torch.distributed.run", "train.py"])
    'torch.distributed.run'
    """
    words = [os.fsdecode(arg) for arg in args] if isinstance(args, (list, tuple)) else []
    if len(words) < _WITH_A_PROGRAM or not _PYTHON.match(Path(words[0]).name):
        return None
    for number, word in enumerate(words[1:-1], 1):
        if word == "-m" and words[number + 1] not in _TOOLS:
            return words[number + 1]
        if not word.startswith("-"):
            break
    name = next((word for word in words[1:] if not word.startswith("-")), "")
    is_own = name.endswith(".py") and "site-packages" not in name
    return Path(name).name if is_own else None


_WITH_A_PROGRAM = 2
_PYTHON = re.compile(r"python[\d.]*$")
_TOOLS = frozenset({"ensurepip", "pip", "venv"})
