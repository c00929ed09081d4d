"""The judge as programs use it: a warm worker, and requests to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Self

from kernbench.errors import InternalError, UsageError
from kernbench.hardware import load_machine
from kernbench.judging.limits import PREFIX, CandidateLimits
from kernbench.judging.verdict import Outcome, Verdict

Path = str | os.PathLike[str]
DEFAULT_MACHINES = ("h100-sxm",)


class Judge:
    """A warm process that judges one candidate after the other; none leaves anything to the next.

    Use it as a context manager, from as many threads as you like: calls queue up.

    >>> with Judge() as judge:  # doctest: +SKIP
    ...     print(judge("softmax.py", "softmax_task.py").outcome)
    right
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
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
            for io in (process.stdin, process.stdout):
                if io is not None:
                    io.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()

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
            UsageError: The task or the candidate cannot be read, or the reference fails by itself.
            MachineError: There is no such machine.
        """
        if not machines:
            raise UsageError("judge(machines=...) must name a machine, but got none")
        for machine in machines:
            load_machine(machine, None)
        if not at_least > 0:
            raise UsageError(f"judge(at_least=...) must be above 0, but got {at_least}")
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
        with self._lock:
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
        process = self._process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.close()
            return {"unknown": "the judge's worker ended while it was judged"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _started(self) -> subprocess.Popen[str]:
        self._folder = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
        own = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TMPDIR": self._folder.name}
        environment = {**os.environ, **own}
        process = subprocess.Popen(
            [sys.executable, "-m", "kernbench.judging.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert process.stdout is not None
        if not process.stdout.readline():
            process.wait()
            raise UsageError(
                "the judge's worker did not start; judging needs PyTorch: install kernbench[torch]"
            )
        self._process = process
        return process


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
