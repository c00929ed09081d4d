"""Waits for several files: ``select`` and ``selectors`` in simulated time.

If nothing from outside of the run is among them, a wait takes no real time. Otherwise simulated
time follows the real clock, so that a wait for a real process with a deadline is long enough.
"""

from __future__ import annotations

import math
import select
import selectors
import socketserver
import time
from collections.abc import Iterable, Mapping
from typing import Any

from kernbench.torch_bridge.base.patches import Patches
from kernbench.torch_bridge.processes.process import HERE
from kernbench.torch_bridge.python.sockets.channels import Wake, arrive, wait_until

_real_poll, _real_select, _real_epoll = select.poll, select.select, select.epoll
_real_clock = time.monotonic
_LOOK_S = 0.005
"""How long a wait stays in the operating system before other ranks get their turns."""
_MS_PER_S = 1000
_ALWAYS = select.POLLERR | select.POLLHUP | select.POLLNVAL
_NAMED = 4
"""How many of the sockets that are waited for errors name."""
Ready = list[tuple[int, int]]
"""Descriptors with what they are ready for, as ``poll`` returns them."""


class FilesWait:
    """One wait for descriptors, some of simulated sockets and some real."""

    def __init__(self, asked: Mapping[int, int]) -> None:
        process = HERE.process
        table = {} if process is None or HERE.is_foreign else process.sockets
        self._asked = {
            fd: (table[fd], events)
            for fd, events in asked.items()
            if fd in table and table[fd].real_fd is None
        }
        self.real_fds: dict[int, int] = {}
        """The descriptors of real files, each with that by which the program knows it."""
        self._poll = _real_poll()
        for fd, events in asked.items():
            if fd not in self._asked:
                real_fd = table[fd].real_fd if fd in table else fd
                self.real_fds[real_fd] = fd
                self._poll.register(real_fd, events)

    @property
    def has_simulated(self) -> bool:
        return bool(self._asked)

    def simulated(self) -> Ready:
        """Return which simulated sockets are ready."""
        ready = [(fd, end.ready() & (asked | _ALWAYS)) for fd, (end, asked) in self._asked.items()]
        return [pair for pair in ready if pair[1]]

    def real(self, timeout_s: float | None = 0.0) -> Ready:
        """Return which real files are ready, after a wait in the operating system."""
        if not self.real_fds and timeout_s == 0:
            return []
        timeout_ms = None if timeout_s is None else math.ceil(timeout_s * _MS_PER_S)
        return [(self.real_fds[fd], number) for fd, number in self._poll.poll(timeout_ms)]

    def both(self) -> Ready:
        """Return all that are ready."""
        return self.simulated() + self.real()

    def wait(self, timeout_s: float | None, label: str) -> Ready:
        """Block until some are ready, or until the timeout."""
        if not self._asked and self.real_fds:
            return self.real(timeout_s)
        if self.real_fds:
            return self.wait_outside(timeout_s, Wake(label))
        return self.wait_inside(timeout_s, label)

    def wait_inside(self, timeout_s: float | None, label: str, wake: Wake | None = None) -> Ready:
        """Block in simulated time, also until somebody calls ``wake``."""
        ends = [end for end, _ in self._asked.values()]
        names = ", ".join(end.describe() for end in ends[:_NAMED])
        label += f": {names}{', ...' if len(ends) > _NAMED else ''}" if names else ""
        sources = [source for end in ends for source in end.sources()]
        return wait_until(self.both, sources, timeout_s, label, wake)

    def wait_outside(self, timeout_s: float | None, wake: Wake) -> Ready:
        """Block as long as the real clock says, while simulated time follows it."""
        sources = [source for end, _ in self._asked.values() for source in end.sources()]
        for source in sources:
            source.watchers.append(wake)
        began_s = passed_s = _real_clock()
        try:
            if self._asked:
                arrive()
            while True:
                left_s = _LOOK_S if timeout_s is None else timeout_s - (passed_s - began_s)
                outside = self.simulated()
                outside += self.real(0.0 if outside else max(min(left_s, _LOOK_S), 0.0))
                if outside or left_s <= 0:
                    return outside
                before_s, passed_s = passed_s, _real_clock()
                if wake.acquire(timeout=passed_s - before_s):
                    return self.both()
        finally:
            for item in sources:
                item.watchers.remove(wake)


_Base: Any = vars(selectors)["_BaseSelectorImpl"]


class WaitingSelector(_Base):
    """``selectors.DefaultSelector`` and its like."""

    label = "a selector"

    def select(self, timeout: float | None = None) -> Any:
        """Return what is ready, as ``selectors.BaseSelector.select`` does."""
        at_least_none = None if timeout is None else max(timeout, 0.0)
        return self.keys_of(self.files().wait(at_least_none, self.label))

    def files(self) -> FilesWait:
        """Return a wait for what is registered."""
        return FilesWait({fd: _poll_events(key.events) for fd, key in self._fd_to_key.items()})

    def keys_of(self, ready: Ready) -> Any:
        """Return the keys of ready descriptors, with the events that were asked for."""
        pairs = []
        for fd, events in ready:
            key = self._fd_to_key.get(fd)
            if key is not None:
                can_read = selectors.EVENT_READ if events & ~select.POLLOUT else 0
                can_write = selectors.EVENT_WRITE if events & ~select.POLLIN else 0
                pairs.append((key, (can_read | can_write) & key.events))
        return pairs

    def fileno(self) -> int:
        raise OSError("a selector of a simulated process has no file")


def _poll_events(events: int) -> int:
    can_read = select.POLLIN if events & selectors.EVENT_READ else 0
    return can_read | (select.POLLOUT if events & selectors.EVENT_WRITE else 0)


class WaitingPoll:
    """``select.poll``, and ``select.epoll`` whose timeouts are in seconds."""

    _timeouts_per_s = _MS_PER_S

    def __init__(self, *_: Any, **__: Any) -> None:
        self._asked: dict[int, int] = {}
        self.closed = False

    def register(
        self, fd: Any, eventmask: int = select.POLLIN | select.POLLPRI | select.POLLOUT
    ) -> None:
        self._asked[_fd_of(fd)] = eventmask

    def modify(self, fd: Any, eventmask: int) -> None:
        number = _fd_of(fd)
        if number not in self._asked:
            raise FileNotFoundError(2, "No such file or directory")
        self._asked[number] = eventmask

    def unregister(self, fd: Any) -> None:
        del self._asked[_fd_of(fd)]

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> Ready:
        timeout_s = None if timeout is None or timeout < 0 else timeout / self._timeouts_per_s
        wait = FilesWait(self._asked).wait(timeout_s, "poll")
        return wait if maxevents < 0 else wait[:maxevents]


class WaitingEpoll(WaitingPoll):
    """``select.epoll``."""

    _timeouts_per_s = 1

    def register(self, fd: Any, eventmask: int = select.EPOLLIN | select.EPOLLOUT) -> None:
        if _fd_of(fd) in self._asked:
            raise FileExistsError(17, "File exists")
        super().register(fd, eventmask)

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> WaitingEpoll:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _fd_of(file: Any) -> int:
    return file if isinstance(file, int) else int(file.fileno())


def waiting_select(
    rlist: Iterable[Any], wlist: Iterable[Any], xlist: Iterable[Any], timeout: float | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """``select.select``."""
    asked = [list(item) for item in (rlist, wlist, xlist)]
    process = HERE.process
    fds = [{_fd_of(file) for file in files} for files in asked]
    own = {} if process is None else process.sockets
    is_real = any(fds) and fds[0].union(*fds).isdisjoint(own)
    if process is None or HERE.is_foreign or is_real:
        return _real_select(asked[0], asked[1], asked[2], timeout)
    if timeout is not None and timeout < 0:
        raise ValueError("timeout must be non-negative")
    events = (select.POLLIN, select.POLLOUT, select.POLLPRI)
    masks: dict[int, int] = {}
    for numbers, event in zip(fds, events, strict=True):
        for fd in sorted(numbers):
            masks[fd] = masks.get(fd, 0) | event
    ready = dict(FilesWait(masks).wait(timeout, "select"))
    counted = (~select.POLLOUT, ~select.POLLIN, select.POLLPRI)
    result = [
        [file for file in files if ready.get(_fd_of(file), 0) & counts & (event | _ALWAYS)]
        for files, event, counts in zip(asked, events, counted, strict=True)
    ]
    return result[0], result[1], result[2]


def install(patches: Patches) -> None:
    """Let waits for files see simulated sockets."""
    patches.set_all(select, select=waiting_select, poll=WaitingPoll, epoll=WaitingEpoll)
    for name in ("DefaultSelector", "SelectSelector", "PollSelector", "EpollSelector"):
        patches.set(selectors, name, WaitingSelector)
    patches.set(socketserver, "_ServerSelector", WaitingSelector)
