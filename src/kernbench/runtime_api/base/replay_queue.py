"""Commands completed in virtual time whose data is still pending (ADR-0002 D2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from kernbench.errors import raisable
from kernbench.logs import logger

_LOG = logger("replay")


class Described(Protocol):
    """What the queue asks of a command."""

    def describe(self) -> str:
        """Return how an error names it."""


class ReplayQueue:
    """Pending records, in the order in which their commands completed, executed on a read.

    A record leaves the queue before it runs, so the buffers that only it holds are freed on the
    way. In a run without data, records are dropped.
    """

    def __init__(self, has_data: bool) -> None:
        self.has_data = has_data
        self._pending: deque[tuple[Described, Callable[[], None]]] = deque()
        self._failed: Exception | None = None
        self._speaks = False
        self.on_push: Callable[[], None] | None = None
        """Called for every record that is pushed."""

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def has_failed(self) -> bool:
        """Whether a record has raised; the error reached whoever drained the queue."""
        return self._failed is not None

    def push(self, command: Described, record: Callable[[], None], *, speaks: bool = False) -> None:
        """Append the record of a completed command.

        One that ``speaks`` prints or asserts: it is executed even if its data is never read.
        """
        if self.has_data:
            self._pending.append((command, record))
            self._speaks |= speaks
            if self.on_push is not None:
                self.on_push()

    def let_speak(self) -> None:
        """Execute all pending records if one of them prints or asserts."""
        if self._speaks:
            self.drain()

    def drain(self) -> None:
        """Execute all pending records, if there are any.

        Raises:
            Exception: What a record raised; again at every later call, because what comes after
                a failed command cannot be trusted.
        """
        if self._failed is not None:
            raise self._failed
        self._speaks = False
        pending = self._pending
        if not pending:
            return
        count, begun_s = len(pending), perf_counter()
        while pending:
            command, record = pending.popleft()
            try:
                record()
            except Exception as error:
                failed = raisable(error, command.describe())
                failed.add_note(f"found when the data of {command.describe()} was computed")
                self._failed = failed
                pending.clear()
                if failed is error:
                    raise
                raise failed from error
        _LOG.debug("computed the data of %d commands in %.3f s", count, perf_counter() - begun_s)
