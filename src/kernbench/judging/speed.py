"""How fast a candidate is: its record beside those of eager and of what is compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import torch

from kernbench.errors import KernbenchError, UsageError
from kernbench.judging.candidate import CandidateFailed, CandidateProcess
from kernbench.judging.correctness import CorrectnessJudge, UnknownOutcomeError
from kernbench.judging.evidence import Evidence, evidence_of, work_of
from kernbench.judging.record import Record, descriptions, line_in
from kernbench.judging.recording import recorded
from kernbench.judging.simulation import on_ranks
from kernbench.judging.tasks import JudgedTask, TaskProblem, of_the_task
from kernbench.judging.timing import TimedRecord, floor_ns, machine_time, time_record
from kernbench.judging.values import DRAWN
from kernbench.judging.verdict import Failure, Verdict
from kernbench.runtime_api import RuntimeContext

_RankTimes = tuple[TimedRecord, TimedRecord, TimedRecord | None, float]
"""Of the candidate, of eager, of what is compiled, and the least time of its bytes in ns."""


@dataclass(frozen=True)
class ReferenceTime:
    """The time of a task's reference at its timed size, on a rank of a run."""

    problem: TaskProblem
    eager: TimedRecord
    compiled: TimedRecord | None
    """Of ``torch.compile`` of it, where that is asked for."""
    evidence: Evidence


def time_reference(
    task: JudgedTask, seed: int, context: RuntimeContext, rank: int, *, compiled: bool
) -> ReferenceTime:
    """Return the time of a task's reference on a rank of a run without data.

    Raises:
        NoDataError: It cannot be executed without data.
        UsageError: It fails by itself.
    """
    for size in task.stated():  # the last is the one to be timed
        problem = task.hollow(size, seed, rank)
        with of_the_task(task.path, "its reference fails by itself"):
            done = recorded(problem.reference, problem.inputs)
        task.num_results[size.label] = sum(math.prod(e["size"]) for e in descriptions(done.results))
    eager, fast = time_record(context, done, rank), None
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(problem.reference)
        for _ in range(2):
            done_fast = recorded(function, problem.inputs)
        fast = time_record(context, done_fast, rank)
    return ReferenceTime(problem, eager, fast, evidence_of(done))


class SpeedJudge:
    """Times a candidate at a task's timed size, and notes in its verdict what that shows."""

    def __init__(
        self,
        task: JudgedTask,
        verdict: Verdict,
        executed: CorrectnessJudge,
        known: Mapping[str, ReferenceTime],
        *,
        compiled: bool,
    ) -> None:
        """Take a task; ``executed``: what was executed with values before, at which sizes.

        ``known``: times of its reference, by machine, as far as they are; ``compiled``: whether
        ``torch.compile`` of it is timed, too.
        """
        self._task, self._verdict, self._executed = task, verdict, executed
        self._known = known
        self._compiled = compiled
        self._size = task.stated()[-1]
        self._timed_record: Record | None = None
        """The last record that was timed."""

    def time(
        self,
        start: Callable[[], CandidateProcess],
        machine: str,
        inside: RuntimeContext | None = None,
    ) -> None:
        """Time the candidate on a machine, by itself or on the ranks of its task.

        ``inside``: the run without data that the caller is inside of; None: it is in none.
        """
        alone = partial(self._time_alone, start, self._known.get(machine))
        try:
            if inside is not None:
                timed = [alone(inside, 0)]
            elif self._task.ranks == 1:
                timed = on_ranks(alone, machine, 1, data=False)
            else:
                with closing(start()) as candidate:
                    work = partial(self._time_rank, self._records(candidate), None)
                    timed = on_ranks(work, machine, self._task.ranks, data=False)
        except UsageError:  # of the task
            raise
        except (KernbenchError, CandidateFailed) as error:
            self._verdict.remarks.append(f"{machine}: its time cannot be said: {error}")
            return
        if self._timed_record is not None:
            is_first = self._verdict.sizes and not self._verdict.times
            if is_first and self._size.label not in self._executed.work_of:
                self._executed.try_part(self._timed_record, self._size, machine)
            wrong = self._executed.wrong_when_timed(self._timed_record, machine)
            if wrong:
                self._verdict.tricks.append(
                    f"at size {self._size.label} it does other work when it is timed: {wrong}"
                )
        mine, eager, compiled, floor = zip(*timed, strict=True)
        # All wait for the slowest.
        own, plain = (max(times, key=lambda timed: timed.time_ns) for times in (mine, eager))
        compiled_ns = max(timed.time_ns for timed in compiled) if self._compiled else None
        self._verdict.times.append(
            machine_time(machine, self._size, own, plain, compiled_ns, floor[0])
        )

    def _records(self, candidate: CandidateProcess) -> list[Record]:
        # Without data, memory of a device is no memory here: it makes its inputs itself.
        asked = {"size": self._size, "seed": self._verdict.seed, "warm": 1}
        return candidate.call(*[asked] * self._task.ranks)

    def _time_alone(
        self,
        start: Callable[[], CandidateProcess],
        reference: ReferenceTime | None,
        context: RuntimeContext,
        rank: int,
    ) -> _RankTimes:
        with closing(start()) as candidate:
            records = self._records(candidate)
        (self._timed_record,) = records
        return self._time_rank(records, reference, context, rank)

    def _time_rank(
        self,
        records: list[Record],
        reference: ReferenceTime | None,
        context: RuntimeContext,
        rank: int,
    ) -> _RankTimes:
        """Return a rank's times.

        Raises:
            UnknownOutcomeError: At this size it does what it does at no executed one.
        """
        size, record = self._size, records[rank]
        if reference is None:
            reference = time_reference(
                self._task, self._verdict.seed, context, rank, compiled=self._compiled
            )
        self._check_work(record)
        mine = time_record(context, record, rank)
        evidence, says = evidence_of(record), mine.unwritten
        for index in self._executed.room:
            says = says or mine.in_inputs.get(index, "")
        if evidence.from_before or not evidence.depends_on_inputs:
            says = "its result does not depend on its inputs"
        if mine.overflow:  # which a check refuses where there are values
            says = f"{mine.unwritten}: {mine.overflow}" if mine.unwritten else mine.overflow
            self._verdict.failure = Failure(size.label, DRAWN, says, line_in(mine.overflow))
        elif says and reference.evidence.depends_on_inputs:
            self._verdict.tricks.append(f"at size {size.label}, which is timed, {says}")
        if self._executed.lines and size.label not in self._executed.work_of:
            self._refuse_new("executes", mine.lines - self._executed.lines)
            if evidence.narrowed and not (
                reference.evidence.narrowed or self._executed.is_accepted
            ):
                self._verdict.tricks.append(
                    f"at size {size.label}, which is timed, it computes in fewer bits than the "
                    f"task's types have: {evidence.narrowed}"
                )
            missed = set(mine.unread).intersection(*self._executed.whole)
            says = mine.kept and f"{mine.kept}, which lies where an earlier call has left it"
            if missed:
                what = mine.unread[min(missed)]
                says = f"{what}, all of which it reads at those that were executed with values"
            if says and not self._verdict.tricks:
                raise UnknownOutcomeError(f"at size {size.label}, which is timed, {says}")
        return mine, reference.eager, reference.compiled, floor_ns(context, record)

    def _check_work(self, record: Record) -> None:
        """Hold a record to be timed to the work that was executed with values."""
        work_at, label = self._executed.work_of, self._size.label
        work, done = work_of(record), work_at.get(label)
        if done is None:
            if work_at:
                self._refuse_new("launches", work - set().union(*work_at.values()))
        elif work != done:
            which = ", ".join(sorted(work ^ done)[:3])
            self._verdict.tricks.append(
                f"at size {label} it launches other work when it is timed ({which})"
            )

    def _refuse_new(self, does: str, new: set[str]) -> None:
        if new:
            raise UnknownOutcomeError(
                f"at size {self._size.label}, which is timed, it {does} "
                f"{', '.join(sorted(new)[:3])}, which no size does that is small enough to be "
                "executed with values"
            )
