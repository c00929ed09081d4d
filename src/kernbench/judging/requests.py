"""Judging one candidate, in a process that never runs any of its code."""

from __future__ import annotations

import random
import resource
import time
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kernbench.errors import UsageError
from kernbench.inputs import read_text
from kernbench.judging.candidate import CandidateFailed, CandidateProcess
from kernbench.judging.correctness import CorrectnessJudge, UnknownOutcomeError
from kernbench.judging.limits import CandidateLimits
from kernbench.judging.scanning import Scan, scan
from kernbench.judging.simulation import in_simulation
from kernbench.judging.speed import SpeedJudge
from kernbench.judging.tasks import JudgedTask, load_task, of_the_task
from kernbench.judging.verdict import Outcome, Verdict
from kernbench.runtime_api import RuntimeContext

_MOST_SOURCE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class JudgeRequest:
    """What is to be judged, and how.

    ``seed`` None: drawn by the judge, so that no candidate knows it. ``at_least``: the speed-up
    over eager from which on it is fast enough. ``values``: whether it is executed at all; without,
    only its time is asked for. ``compiled``: whether torch.compile of the reference is timed, too.
    """

    candidate: Path
    task: Path
    machines: tuple[str, ...] = ("h100-sxm",)
    seed: int | None = None
    at_least: float = 1.0
    values: bool = True
    times: bool = True
    compiled: bool = False
    limits: CandidateLimits = field(default_factory=CandidateLimits)


def judge_request(request: JudgeRequest) -> Verdict:
    """Return the verdict on a candidate. The calling process must run nothing else: it forks.

    Raises:
        UsageError: The task cannot be read, there is no candidate, or the reference fails itself.
    """
    began = _cpu_s()
    seed = random.SystemRandom().randrange(1 << 31) if request.seed is None else request.seed
    paths = str(request.candidate), str(request.task)
    verdict = Verdict(*paths, "", Outcome.UNKNOWN, "", seed)
    try:
        text = read_text(request.candidate, _MOST_SOURCE_BYTES).removeprefix("\ufeff")
    except FileNotFoundError:
        raise UsageError(f"{request.candidate}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        # Others are judged beside it.
        verdict.why = f"it cannot be read: {getattr(error, 'strerror', None) or error}"
        return verdict
    scanned = scan(text)
    verdict.tricks = list(scanned.tricks)
    verdict.outcome, verdict.why = _decided(request, scanned, verdict)
    verdict.remarks = list(dict.fromkeys(verdict.remarks))
    verdict.cpu_s = round(_cpu_s() - began, 3)
    return verdict


def _cpu_s() -> float:
    """Return the CPU time of this process and of the candidates' that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def _decided(request: JudgeRequest, scanned: Scan, verdict: Verdict) -> tuple[Outcome, str]:
    """Judge, and return the outcome and why."""
    if scanned.error:
        return Outcome.WRONG, scanned.error
    if scanned.cuda:
        return Outcome.UNKNOWN, (
            f"it is CUDA C++ ({scanned.cuda}), which is not simulated; candidates are Triton, "
            "Gluon, Helion or PyTorch"
        )
    try:
        _judge(request, scanned, verdict)
    except UnknownOutcomeError as error:
        return Outcome.UNKNOWN, str(error)
    except CandidateFailed as error:
        return Outcome.WRONG, f"it does not run: {error}"
    except MemoryError:
        most = 2 * request.limits.memory_mib
        return Outcome.UNKNOWN, f"executing its record takes more than {most:,} MiB"
    if verdict.tricks:
        return Outcome.CHEAT, verdict.tricks[0]
    if verdict.failure is not None:
        return Outcome.WRONG, verdict.failure.says.partition("\n")[0].rstrip(":")
    num = sum(size.outcome == "right" for size in verdict.sizes)
    if request.values and not num:
        return Outcome.UNKNOWN, "none of its sizes could be executed"
    is_fast = bool(verdict.times) and all(
        time.speedup_low is not None and time.speedup_low >= request.at_least
        for time in verdict.times
    )
    said = f"it computes what the reference does at {num} sizes"
    if verdict.times:
        said += f"; {verdict.times[0].machine}: {verdict.times[0].speed}"
    return Outcome.FAST if is_fast else Outcome.RIGHT, said


def _judge(request: JudgeRequest, scanned: Scan, verdict: Verdict) -> None:
    """Note in a verdict whether a candidate is right, and how long it takes."""
    first, *others = request.machines

    def start(task: JudgedTask, machine: str, *, data: bool) -> CandidateProcess:
        path = request.candidate.resolve()
        return CandidateProcess(path, task, machine, request.limits, data=data)

    def begin(
        context: RuntimeContext,
    ) -> tuple[CorrectnessJudge, SpeedJudge, CandidateProcess | None]:
        with of_the_task(request.task, "it cannot be loaded"):
            task = load_task(request.task)
            executed = CorrectnessJudge(task, verdict, scanned.kernels)
            speed = SpeedJudge(task, verdict, executed, compiled=request.compiled)
        verdict.form = task.form
        candidate = None
        if request.values and task.ranks == 1:
            candidate = start(task, first, data=True)
        elif request.times and task.ranks == 1:
            speed.time(partial(start, task, first, data=False), first, context)
        return executed, speed, candidate

    executed, speed, candidate = in_simulation(begin, first, data=request.values)
    task = executed.task
    if candidate is not None:
        with closing(candidate):
            in_simulation(partial(executed.try_sizes, candidate), first, check=True)
    elif request.values:
        executed.try_ranks(partial(start, task, first, data=True), first)
    if request.times and verdict.failure is None:
        is_timed = not request.values and task.ranks == 1
        for machine in others if is_timed else request.machines:
            speed.time(partial(start, task, machine, data=False), machine)
