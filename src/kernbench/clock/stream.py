"""A device's in-order queue of commands."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from simpy import Event

from kernbench.clock.handles import Handle, Timer
from kernbench.clock.hbm_sharing import HbmSharing
from kernbench.clock.simulation import Simulation
from kernbench.errors import raisable
from kernbench.op_log import Template

_NEVER_PS = 1 << 62
"""The launch of a command that will not begin."""


class StreamCommand(Handle):
    """Something a stream runs: how long it takes is decided when it starts.

    An error of :meth:`begin` or :meth:`finish` ends the command and is raised in whoever waits.
    """

    start_ps = -1
    end_ps = -1
    earliest_ps = 0
    """When its launch reaches the device; the host may be ahead of the simulation's clock."""
    engine: DeviceEngine | None = None
    """What only one command of any stream may use at a time; None where there is no such thing."""
    queued = False
    """Whether it waited on the device, behind another command of its stream or engine."""
    parts = False
    """Whether the front end starts what follows only when this has ended, as on an idle device."""
    only_waits = False
    """Whether it does nothing but wait for something else."""
    after = 0
    """What it waited for until it started, as the log numbers it; 0: its launch."""
    template: Template | None = None
    """What it does, if others can slow it down; :meth:`begin` sets it."""
    caller = 0
    """The number of the line that launched it, where they are recorded (:class:`Callers`)."""

    def begin(self) -> int | None:
        """Return the duration in picoseconds. The command starts now.

        None: it does not know, and calls its :meth:`end_after` itself.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Do the work of completion, before any waiting rank resumes."""

    def abandon(self) -> None:
        """Do no more than what runs now: who has launched it is gone."""


class Entrance(Protocol):
    """Where a command begins once its engine is free."""

    def enter(self, command: StreamCommand) -> None: ...


class Holder(Protocol):
    """An owner that holds an engine for several commands in a row."""

    def cut(self) -> None:
        """Give it back after what runs now."""


class Callers(Protocol):
    """Records which lines of the program launch commands."""

    latest: int
    """The number of the line that has launched something last."""

    ended: Callable[[int, int], object]
    """Called with the number of a command that has ended, by the log, and its caller's."""


class DeviceEngine:
    """An engine of a SIP that its streams share, first come, first served."""

    def __init__(self) -> None:
        self.is_busy = False
        self.waiting: deque[tuple[Entrance, StreamCommand]] = deque()
        self.holder: Holder | None = None
        """Who has it, if that is an owner who can yield it between commands."""
        self.last = 0
        """The command that had it last, as the log numbers it."""

    def wanted_by(self, entrance: Entrance, command: StreamCommand) -> None:
        """Queue a command for it; ``entrance`` is called when it is free."""
        self.waiting.append((entrance, command))
        if self.holder is not None:
            self.holder.cut()

    def release(self) -> None:
        """Hand it to the next command."""
        self.is_busy = False
        if self.waiting:
            entrance, command = self.waiting.popleft()
            command.after = self.last
            # It asks again, and no other command can have come in between.
            entrance.enter(command)


class Stream:
    """Runs commands one after another, in the order in which they were submitted.

    There is no process behind it: one SimPy event per command, whose callback starts the next.
    """

    def __init__(
        self,
        simulation: Simulation,
        name: str,
        sip_id: int = 0,
        sharing: HbmSharing | None = None,
        callers: Callers | None = None,
    ) -> None:
        self.name = name
        self.sip_id = sip_id
        self._sharing = sharing
        self._callers = callers
        self.tail: StreamCommand | None = None
        """The command that was submitted last, or None. When it is done the stream is idle."""
        self.last = 0
        """What its latest command ended with, as the log numbers it."""
        self.parted = False
        """Whether its latest command parts it from what follows."""
        self._failed: list[StreamCommand] = []
        self._env = simulation.env
        self._current: StreamCommand | None = None
        self._queue: deque[StreamCommand] = deque()

    @property
    def is_waiting(self) -> bool:
        """Whether it has a command that only waits for something else."""
        return self._current is not None and self._current.only_waits

    def submit(self, command: StreamCommand) -> None:
        """Put ``command`` at the end of the queue; it starts now if the stream is idle."""
        command.callbacks.append(self._completed)
        self.tail = command
        if self._callers is not None:
            command.caller = self._callers.latest
        now_ps = self._env.now_ps
        if command.earliest_ps < now_ps:
            command.earliest_ps = now_ps
        if self._current is None:
            self.start(command)
        else:
            self._queue.append(command)

    def abandon(self) -> None:
        """Do no more than what runs now: the process that it belongs to is gone."""
        self._queue.clear()
        if self._current is not None:
            if self._current.engine is not None:
                self._current.engine.waiting.clear()
            self._current.abandon()
            if self._current.start_ps < 0:
                # It waits for its launch, or for its engine.
                self._current.earliest_ps = _NEVER_PS
        self._failed.clear()

    def raise_unseen(self) -> None:
        """Raise the error of the first failed command that no rank has waited for."""
        failed, self._failed = self._failed, []
        for command in failed:
            if command.error is not None and not command.error_seen:
                command.error_seen = True
                raise command.error

    def start(self, command: StreamCommand) -> None:
        """Begin a command of this stream as soon as its launch is there and its engine is free."""
        self._current = command
        now_ps = self._env.now_ps
        if command.earliest_ps > now_ps:
            reached = Timer(self._env, command.earliest_ps - now_ps)
            reached.callbacks.append(lambda _: self.enter(command))
        else:
            self.enter(command)

    def enter(self, command: StreamCommand) -> None:
        """Begin the command at the head of this stream now, or when its engine is free."""
        engine = command.engine
        if command.earliest_ps == _NEVER_PS:
            return
        if engine is not None:
            if engine.is_busy:
                engine.wanted_by(self, command)
                return
            engine.is_busy = True
        now_ps = self._env.now_ps
        command.start_ps = now_ps
        if now_ps > command.earliest_ps:
            command.queued = not self.parted
            command.after = command.after or self.last
        # Of one that is not logged itself: what it ends with is what it waited for.
        command.ended_by = command.after
        try:
            duration_ps = command.begin()
        except Exception as error:
            command.error = raisable(error, command.describe())
            duration_ps = 0
        if duration_ps is not None:
            command.end_after(duration_ps)
            if command.template is not None and self._sharing is not None:
                self._sharing.begin_alone(
                    command, self.sip_id, command.template, duration_ps, now_ps
                )

    def _completed(self, event: Event) -> None:
        command = self._current
        assert command is event
        command.end_ps = self._env.now_ps
        if command.error is None:
            try:
                command.finish()
            except Exception as error:
                command.error = raisable(error, command.describe())
        if command.error is not None:
            self._failed.append(command)
        self.last, self.parted = command.ended_by, command.parts
        if self._callers is not None and command.ended_by > 0:
            self._callers.ended(command.ended_by, command.caller)
        if command.engine is not None:
            command.engine.last = command.ended_by
            # Not before it is finished: what starts now may read what this one wrote.
            command.engine.release()
        self._current = None
        if self._queue:
            self.start(self._queue.popleft())
