"""What an engine calls for a point, in whichever process: it hands the point to a server."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_ALL: set[Server] = set()
_IDLE: list[Server] = []
"""Servers of this process that wait for a job."""
_GUARD = threading.Lock()


class LostPointError(Exception):
    """The server of a point is gone, for no fault of the point's."""


class Server:
    """A process that runs points, one at a time."""

    def __init__(self) -> None:
        # Points run side by side; each with threads for all cores would be slower.
        one_each = dict.fromkeys(_ONE_THREAD, "1")
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for who runs the sweep
            env={**one_each, **os.environ},
        )
        self._read()

    def run(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a job.

        Raises:
            LostPointError: The process has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            # A pipe that is closed at either end.
            raise LostPointError("the process that runs points has ended") from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            line = self._process.stdout.readline()
        except ValueError:
            # Another thread has ended it.
            line = ""
        if not line.endswith("\n"):
            status = self._process.wait()
            raise LostPointError(f"the process that runs points has ended with {status}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """End the process, and the point that it runs; a thread that waits for it hears so."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def run_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run a point on a server of this process, and return its answer.

    Raises:
        LostPointError: The server has ended.
    """
    with _GUARD:
        server = _IDLE.pop() if _IDLE else None
    if server is None:
        server = Server()
        _ALL.add(server)
    try:
        answer = server.run(job)
    except BaseException:
        _ALL.discard(server)
        server.end()
        raise
    with _GUARD:
        _IDLE.append(server)
    return answer


def end_servers(*, busy_only: bool = False) -> None:
    """End the servers of this process; new ones are started when needed."""
    with _GUARD:
        servers = [server for server in _ALL if not (busy_only and server in _IDLE)]
        _ALL.difference_update(servers)
        _IDLE[:] = [server for server in _IDLE if server in _ALL]
    for server in servers:
        server.end()


atexit.register(end_servers)
