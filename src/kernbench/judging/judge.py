"""The judge as programs use it: a warm worker, and requests to it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from typing import Any, Self

from kernbench.errors import InternalError, KernbenchError, UsageError
from kernbench.hardware import load_machine
from kernbench.judging.limits import PREFIX, CandidateLimits, remove_folder
from kernbench.judging.verdict import Outcome, Verdict

Path = str | os.PathLike[str]
DEFAULT_MACHINES = ("h100-sxm",)


class Judge:
    """A warm process that judges, each candidate in a process forked from it; none sees another.

    Use it as a context manager, from as many threads as you like: their calls run side by side, and
    share what memory the warm process has.

    >>> with Judge() as judge:  # doctest: +SKIP
    ...     print(judge("softmax.py", "softmax_task.py").outcome)
    right
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._folder: str | None = None
        """Where the worker and its candidates write."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        control, self._control = self._control, None
        if control is not None:
            control.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            remove_folder(folder)

    def __call__(
        self,
        candidate: Path,
        task: Path,
        *,
        machines: Sequence[str] = DEFAULT_MACHINES,
        seed: int | None = None,
        at_least: float = 1.0,
        values: bool = True,
        times: bool = True,
        compiled: bool = False,
        limits: CandidateLimits | None = None,
        total_s: float = 900.0,
    ) -> Verdict:
        """Return the verdict on a candidate against a task.

        Args:
            candidate: A file.
            task: A file, or a folder with ``task.yml``; it is trusted, and runs in the judge.
            machines: On which it is timed; the first is also the one whose checks it passes.
            seed: Of the judge's inputs; None draws one, which the verdict says.
            at_least: The speed-up over eager, at the low end of its interval, from which on a
                right candidate is fast enough.
            values: Whether its results are looked at; without, only its time.
            times: Whether it is timed.
            compiled: Whether ``torch.compile`` of the reference is timed beside eager.
            limits: What the candidate may use.
            total_s: Of wall time, for all of it.

        Raises:
            UsageError: The task cannot be read, there is no candidate, or the reference fails by
                itself.
            MachineError: There is no such machine.
        """
        if not machines:
            raise UsageError("judge(machines=...) must name a machine, but got none")
        for machine in machines:
            load_machine(machine, None)
        for name, number in (("at_least", at_least), ("total_s", total_s)):
            if not number > 0:
                raise UsageError(f"judge({name}=...) must be above 0, but got {number}")
        if seed is not None and (type(seed) is not int or not 0 <= seed < 1 << 63):
            raise UsageError(f"judge(seed=...) must be an integer from 0 on, but got {seed!r}")
        request = {
            "candidate": os.path.abspath(candidate),  # noqa: PTH100 - a link stays one
            "task": os.path.abspath(task),  # noqa: PTH100
            "machines": list(machines),
            "limits": asdict(limits or CandidateLimits()),
            "total_s": total_s,
            "options": {
                "seed": seed,
                "at_least": at_least,
                "values": values,
                "times": times,
                "compiled": compiled,
            },
        }
        answer = self._asked(request)
        paths = os.fspath(candidate), os.fspath(task)
        if "verdict" in answer:
            verdict = Verdict.of(answer["verdict"])
            verdict.candidate, verdict.task = paths
            return verdict
        if "error" in answer:
            raise UsageError(answer["error"])
        if "unknown" in answer:
            return Verdict(*paths, "", Outcome.UNKNOWN, answer["unknown"], seed or 0)
        raise InternalError(f"judging {paths[0]}: {answer.get('internal')}")

    def _asked(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the worker's answer; one that died is started again for the next."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self.close()
            control = self._control or self._started()
        ours, theirs = socket.socketpair()
        parts: list[bytes] = []
        # Without an answer it is given up, and what judges it ends.
        ours.settimeout(min(request["total_s"], 1e6))
        with ours:
            with theirs, suppress(OSError):
                socket.send_fds(control, [b"?"], [theirs.fileno()])
            try:
                ours.sendall(json.dumps(request).encode())
                ours.shutdown(socket.SHUT_WR)
                parts += iter(partial(ours.recv, 1 << 20), b"")
            except TimeoutError:
                return {"unknown": f"it was not judged within {request['total_s']:g} s"}
            except OSError:
                pass
        if not parts:
            return {"unknown": "the judge's worker ended while it was judged"}
        answer: dict[str, Any] = json.loads(b"".join(parts))
        return answer

    def _started(self) -> socket.socket:
        self._folder = tempfile.mkdtemp(prefix=PREFIX)
        own = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TMPDIR": self._folder}
        control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kernbench.judging.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **own},
            )
        self._control = control
        if not control.recv(1):
            self.close()
            raise UsageError(
                "the judge's worker did not start; judging needs PyTorch: install kernbench[torch]"
            )
        return control


def judge(
    candidate: Path,
    task: Path,
    *,
    machines: Sequence[str] = DEFAULT_MACHINES,
    seed: int | None = None,
    at_least: float = 1.0,
    values: bool = True,
    times: bool = True,
    compiled: bool = False,
    limits: CandidateLimits | None = None,
    total_s: float = 900.0,
) -> Verdict:
    """Return the verdict on a candidate, by a worker that is started for it.

    Takes what :meth:`Judge.__call__` takes. For many candidates keep a :class:`Judge`: starting its
    worker takes seconds.
    """
    asked = dict(locals())
    with Judge() as started:
        return started(**asked)


class BusyError(KernbenchError):
    """More candidates wait than a pool lets wait."""


class JudgePool:
    """How many candidates one warm process judges at a time, and how many wait."""

    def __init__(
        self, workers: int | None = None, *, most_waiting: int | None = None, **options: Any
    ) -> None:
        """Judge at most so many at a time, as many as are asked for when missing.

        ``options`` are those of a :class:`Judge` that all candidates have.
        """
        self._turns = None if workers is None else threading.Semaphore(workers)
        self._most = None if workers is None or most_waiting is None else workers + most_waiting
        self._options = options
        self._judge = Judge()
        self._lock = threading.Lock()
        self._asked = 0

    def judge(self, candidate: Path, task: Path, **options: Any) -> Verdict:
        """Return the verdict on a candidate.

        Raises:
            BusyError: Too many wait.
            KernbenchError: The task is none, or there is no such machine.
        """
        with ExitStack() as stack:
            with self._lock:
                if self._most is not None and self._asked >= self._most:
                    raise BusyError(f"{self._asked} candidates wait already; ask again later")
                self._asked += 1
            stack.callback(self._leave)
            if self._turns is not None:
                stack.enter_context(self._turns)
            return self._judge(candidate, task, **{**self._options, **options})

    def _leave(self) -> None:
        with self._lock:
            self._asked -= 1

    def close(self) -> None:
        """End the warm process, and what it judges; a pool that is asked again starts anew."""
        self._judge.close()
