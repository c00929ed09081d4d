"""Signals of a simulated process: handlers, those that it sends itself, its alarm (ADR-0214).

Python calls handlers between any two instructions of the main thread. Here an alarm that is due
is noticed where the main thread sleeps, reads a clock, or has waited for a device or another rank.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any

from kernbench.errors import SignalEnd
from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from kernbench.torch_bridge.processes.process import HERE, Process
from kernbench.torch_bridge.python import event_loops

_PS_PER_S = 10**12
_UNHEARD = frozenset({signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH})
"""Signals without effect on a process that has no handler for them."""
_UNCATCHABLE = frozenset({signal.SIGKILL, signal.SIGSTOP})
_STOPPING = frozenset({signal.SIGSTOP, signal.SIGTSTP, signal.SIGCONT})
_kill, _getpid = os.kill, os.getpid


def install(patches: Patches) -> None:
    """Give each process handlers and an alarm of its own."""
    for owner, name, instead in (
        (signal, "signal", _handle),
        (signal, "getsignal", _handler),
        (signal, "raise_signal", receive),
        (signal, "alarm", _alarm),
        (signal, "setitimer", _set_timer),
        (signal, "getitimer", _timer),
        (signal, "pause", _pause),
        (signal, "set_wakeup_fd", _set_wakeup),
        (os, "kill", _send),
        (os, "killpg", _send_to_group),
        (os, "abort", _abort),
    ):
        patches.set(owner, name, _in_simulated(getattr(owner, name), instead))


def _in_simulated(function: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    """Return what does something else in simulated processes: first for one of these."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        process = HERE.process
        if process is None or HERE.is_foreign:
            return function(*args, **kwargs)
        return instead(process, *args, **kwargs)

    return called


def _named(handler: Any) -> Any:
    with suppress(ValueError, TypeError):
        return signal.Handlers(handler)
    return handler


def _handler(process: Process, number: int) -> Any:
    if number not in signal.valid_signals():
        raise ValueError("signal number out of range")
    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    return process.signals.handlers.get(number, usual)


def _handle(process: Process, number: int, handler: Any) -> Any:
    handler = _named(handler)
    if not callable(handler) and handler not in (signal.SIG_IGN, signal.SIG_DFL):
        raise TypeError(
            "signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object"
        )
    if threading.current_thread() is not threading.main_thread() and not _is_main(process):
        raise ValueError("signal only works in main thread of the main interpreter")
    before = _handler(process, number)
    if number in _UNCATCHABLE:
        raise OSError(22, "Invalid argument")
    process.signals.handlers[number] = handler
    return before


def _set_wakeup(process: Process, fd: int, *, warn_on_full_buffer: bool = True) -> int:
    if not _is_main(process):
        raise ValueError("set_wakeup_fd only works in main thread of the main interpreter")
    before, process.signals.wakeup_fd = process.signals.wakeup_fd, fd
    return before


def _is_main(process: Process) -> bool:
    return process.thread is process.main_thread


def ends(process: Process, number: int) -> bool:
    """Return whether a signal ends a process, as one that has no handler for it."""
    handler = signal.SIG_DFL if number in _UNCATCHABLE else _handler(process, number)
    return handler is signal.SIG_DFL and number not in _UNHEARD


def receive(process: Process, number: int) -> None:
    """Do what a process does that receives a signal (``signal.raise_signal``)."""
    handler = _handler(process, number)
    if ends(process, number):
        process.ends_at_once = True
        raise SignalEnd(-number)
    if callable(handler):
        if process.signals.wakeup_fd >= 0:
            os.write(process.signals.wakeup_fd, bytes((number,)))
            event_loops.wake_running()
        handler(int(number), sys._getframe(1))
        paused, process.signals.paused = process.signals.paused, None
        if paused is not None:
            paused.end_after(0)


def _send(process: Process, pid: int, number: int) -> None:
    started = process.session.started.get(pid)
    if pid == (process.pid or _getpid()):
        if number:
            receive(process, number)
    elif started is not None:
        if number in _STOPPING:
            _refuse(f"os.kill({pid}, {_name(number)})", "that stop a process for a while")
        if started.returncode is not None:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        if number:
            process.host.reach()
            started.receive(number)
    elif pid == _getpid() and number:
        _refuse(f"os.kill({pid}, {_name(number)})", "to the process that has started this one")
    else:
        _kill(pid, number)


def _send_to_group(process: Process, group: int, number: int) -> None:
    """``os.killpg``: all ranks are in the group of the real process, and so is who started it."""
    if group in (0, os.getpgrp()) and number:
        _refuse(f"os.killpg({group}, {_name(number)})", "to the group of all ranks")
    os.kill(-group, number)


def _refuse(asked: str, what: str) -> None:
    raise UnsupportedTorchError(
        f"{asked}: signals {what} are not simulated; a process may signal itself (os.getpid()), "
        "and those that multiprocessing has started"
    )


def _name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return str(number)


def _abort(process: Process) -> None:
    process.signals.handlers.pop(signal.SIGABRT, None)
    receive(process, signal.SIGABRT)


def _set_timer(
    process: Process, which: int, seconds: float, interval: float = 0.0
) -> tuple[float, float]:
    if which != signal.ITIMER_REAL:
        _refuse("signal.setitimer of a clock other than ITIMER_REAL", "of other timers")
    if seconds < 0 or interval < 0:
        raise signal.ItimerError(22, "Invalid argument")
    before = _timer(process, which)
    host = process.host
    process.signals.interval_ps = int(interval * _PS_PER_S)
    host.alarm_ps = host.now_ps + int(seconds * _PS_PER_S) if seconds else None
    host.rings = partial(_ring, process)
    keeper = process.session.run.keeper
    if keeper is not None and seconds:
        keeper.refused["it sets an alarm"] = None
    return before


def _timer(process: Process, which: int) -> tuple[float, float]:
    due_ps = process.host.alarm_ps
    if which != signal.ITIMER_REAL or due_ps is None:
        return 0.0, 0.0
    left_ps = max(due_ps - process.host.now_ps, 1)
    return left_ps / _PS_PER_S, process.signals.interval_ps / _PS_PER_S


def _alarm(process: Process, seconds: int) -> int:
    left_s, _ = _set_timer(process, signal.ITIMER_REAL, seconds)
    return max(round(left_s), 1) if left_s else 0


def _pause(process: Process) -> None:
    """``signal.pause``: its alarm ends it, or a signal of another process."""
    due_ps = process.host.alarm_ps
    if due_ps is None:
        simulation = process.session.run.simulation
        process.signals.paused = simulation.handle("signal.pause")
        simulation.wait(process.signals.paused)
    else:
        process.host.sleep(max(due_ps - process.host.now_ps, 0))


def _ring(process: Process) -> bool:
    """Deliver the alarm, which is due, if the calling thread is the main one; return whether."""
    if not _is_main(process):
        return False
    host, interval_ps = process.host, process.signals.interval_ps
    host.alarm_ps = host.now_ps + interval_ps if interval_ps else None
    receive(process, signal.SIGALRM)
    return True
