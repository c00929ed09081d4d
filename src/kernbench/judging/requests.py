"""Judging one candidate, in a process that never runs any of its code."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from time import process_time
from typing import Never

from kernbench.errors import KernbenchError, UsageError
from kernbench.inputs import read_text
from kernbench.judging.candidate import CandidateFailed, CandidateProcess
from kernbench.judging.correctness import CorrectnessJudge, UnknownOutcomeError
from kernbench.judging.limits import CandidateLimits
from kernbench.judging.recording import ready_to_listen
from kernbench.judging.scanning import scan
from kernbench.judging.simulation import in_simulation
from kernbench.judging.speed import ReferenceTime, SpeedJudge, time_reference
from kernbench.judging.tasks import JudgedTask, TaskProblem, load_task, of_the_task
from kernbench.judging.verdict import Outcome, Verdict
from kernbench.runtime_api import RuntimeContext

_MOST_SOURCE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class JudgeRequest:
    """What is to be judged, and how.

    ``folder``: where it and its candidate write. ``seed`` None: drawn by the judge, so that no
    candidate knows it. ``at_least``: the speed-up over eager from which on it is fast enough.
    ``values``: whether it is executed at all; without, only its time is asked for. ``compiled``:
    whether torch.compile of the reference is timed, too.
    """

    candidate: Path
    task: Path
    folder: Path
    machines: tuple[str, ...] = ("h100-sxm",)
    seed: int | None = None
    at_least: float = 1.0
    values: bool = True
    times: bool = True
    compiled: bool = False
    limits: CandidateLimits = field(default_factory=CandidateLimits)


def judge_next(
    like: JudgeRequest,
    next_request: Callable[[], JudgeRequest],
    answer: Callable[[Verdict], Never],
) -> Never:
    """Get ready for a task, wait for a request, and answer it.

    Ready is who has loaded the task, and timed its reference if it is of one rank.
    ``next_request`` returns in processes forked from the calling one, which must run nothing else:
    requests that are ``like`` that one but for their candidates and limits.

    Raises:
        UsageError: The task cannot be read, there is no candidate, or the reference fails itself.
    """
    seed = _drawn_seed() if like.seed is None else like.seed
    known: dict[str, ReferenceTime] = {}

    def load(_: RuntimeContext) -> JudgedTask:
        with of_the_task(like.task, "it cannot be loaded"):
            return load_task(like.task)

    def time(task: JudgedTask, machine: str, context: RuntimeContext) -> None:
        if like.values:
            task.count(seed)  # where large inputs are no memory
        with ready_to_listen(), suppress(KernbenchError):  # which is said of each candidate
            known[machine] = time_reference(task, seed, context, 0, compiled=like.compiled)

    def begin(context: RuntimeContext) -> _Judging:
        task = loaded[0] if loaded else load(context)
        is_timed_here = like.times and not like.values and task.ranks == 1
        if is_timed_here:
            time(task, like.machines[0], context)
        with ready_to_listen():
            if like.values:
                task.count(seed)
            judging = _Judging(next_request(), task, seed, known)
            with judging.deciding():
                judging.begin(context if known and is_timed_here else None)
            if judging.is_done():
                # Leaving a simulation takes longer than many a candidate.
                answer(judging.decided())
        return judging

    loaded = []
    if like.values:
        # What it makes may have values, where time has none.
        loaded.append(in_simulation(load, like.machines[0]))
        for machine in like.machines if loaded[0].ranks == 1 else ():
            in_simulation(partial(time, loaded[0], machine), machine, data=False)
    judging = in_simulation(begin, like.machines[0], data=like.values)
    # It puts back what was set in it.
    os.environ["TMPDIR"] = tempfile.tempdir = str(judging.request.folder)
    with judging.deciding():
        judging.go_on()
    answer(judging.decided())


def _drawn_seed() -> int:
    """Return a seed of the judge's inputs."""
    return random.SystemRandom().randrange(1 << 31)


class _Judging:
    """One request while it is judged: in the simulation of who was ready for it, then after it."""

    def __init__(
        self,
        request: JudgeRequest,
        task: JudgedTask,
        seed: int,
        known: Mapping[str, ReferenceTime],
    ) -> None:
        self.request, self._task, self._known = request, task, known
        self.verdict = Verdict(
            str(request.candidate), str(request.task), task.form, Outcome.UNKNOWN, "", seed
        )
        self._machines = list(request.machines)
        """On which it is still to be timed."""
        self._candidate: CandidateProcess | None = None
        """It, where its values are asked for and it is of one rank."""

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Note in the verdict what ends the judging."""
        try:
            yield
        except UnknownOutcomeError as error:
            self._decide(Outcome.UNKNOWN, str(error))
        except CandidateFailed as error:
            self._decide(Outcome.WRONG, f"it does not run: {error}")
        except (MemoryError, RuntimeError) as error:
            if "allocate memory" not in str(error) and not isinstance(error, MemoryError):
                raise
            most = 2 * self.request.limits.memory_mib
            self._decide(Outcome.UNKNOWN, f"executing its record takes more than {most:,} MiB")

    def _decide(self, outcome: Outcome, why: str) -> None:
        if self.verdict.tricks and outcome is not Outcome.WRONG:
            outcome, why = Outcome.CHEAT, self.verdict.tricks[0]
        self.verdict.outcome, self.verdict.why = outcome, why

    def _start(
        self, machine: str, *, data: bool = False, hollow: TaskProblem | None = None
    ) -> CandidateProcess:
        asked = self.request
        path, limits, folder = asked.candidate.resolve(), asked.limits, asked.folder
        return CandidateProcess(path, self._task, machine, limits, folder, data=data, hollow=hollow)

    def begin(self, inside: RuntimeContext | None) -> None:
        """Read the candidate, and start it, or time it ``inside`` of a run without data.

        Raises:
            UsageError: There is no candidate.
        """
        request, verdict = self.request, self.verdict
        try:
            text = read_text(request.candidate, _MOST_SOURCE_BYTES).removeprefix("\ufeff")
        except FileNotFoundError:
            raise UsageError(f"{request.candidate}: there is no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            # Others are judged beside it.
            says = getattr(error, "strerror", None) or error
            raise UnknownOutcomeError(f"it cannot be read: {says}") from None
        scanned = scan(text)
        verdict.tricks = list(scanned.tricks)
        if scanned.error:
            self._decide(Outcome.WRONG, scanned.error)
            return
        if scanned.cuda:
            raise UnknownOutcomeError(
                f"it is CUDA C++ ({scanned.cuda}), which is not simulated; candidates are Triton, "
                "Gluon, Helion or PyTorch"
            )
        first, task = request.machines[0], self._task
        self._executed = CorrectnessJudge(task, verdict, scanned.kernels)
        self._speed = SpeedJudge(
            task, verdict, self._executed, self._known, compiled=request.compiled
        )
        if inside is not None:
            hollow = self._known[first].problem
            self._speed.time(partial(self._start, first, hollow=hollow), first, inside)
            self._machines.pop(0)
        elif request.values and task.ranks == 1:
            self._candidate = self._start(first, data=True)
            if request.seed is None:  # of which the candidate knows nothing
                verdict.seed = _drawn_seed()

    def go_on(self) -> None:
        """Execute and time the candidate, outside of the simulation of before.

        Raises:
            UnknownOutcomeError: Nothing can be said.
            CandidateFailed: It does not run.
        """
        request, verdict = self.request, self.verdict
        first = request.machines[0]
        if self._candidate is not None:
            with closing(self._candidate) as candidate:
                in_simulation(partial(self._executed.try_sizes, candidate), first, check=True)
        elif request.values:
            self._executed.try_ranks(partial(self._start, first, data=True), first)
        if request.times and verdict.failure is None:
            for machine in self._machines:
                self._speed.time(partial(self._start, machine), machine)

    def is_done(self) -> bool:
        """Return whether nothing is left to do but to decide."""
        return bool(self.verdict.why) or not (self.request.values or self._machines)

    def decided(self) -> Verdict:
        """Return the verdict."""
        with self.deciding():
            if not self.verdict.why:
                self._decide_by_what_was_seen()
        ended = getrusage(RUSAGE_CHILDREN)
        self.verdict.remarks = list(dict.fromkeys(self.verdict.remarks))
        self.verdict.cpu_s = round(process_time() + ended.ru_utime + ended.ru_stime, 3)
        return self.verdict

    def _decide_by_what_was_seen(self) -> None:
        request, verdict = self.request, self.verdict
        if verdict.tricks:
            self._decide(Outcome.CHEAT, verdict.tricks[0])
            return
        if verdict.failure is not None:
            says = verdict.failure.says.partition("\n")[0].rstrip(":")
            self._decide(Outcome.WRONG, says)
            return
        num = sum(size.outcome == "right" for size in verdict.sizes)
        if request.values and not num:
            raise UnknownOutcomeError("none of its sizes could be executed")
        is_fast = bool(verdict.times) and all(
            time.speedup_low is not None and time.speedup_low >= request.at_least
            for time in verdict.times
        )
        said = f"it computes what the reference does at {num} sizes"
        if verdict.times:
            said += f"; {verdict.times[0].machine}: {verdict.times[0].speed}"
        self._decide(Outcome.FAST if is_fast else Outcome.RIGHT, said)
