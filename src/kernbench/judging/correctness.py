"""Whether a candidate is right: its record, executed on values of the judge's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from kernbench.errors import KernbenchError, UnsupportedOpError, UsageError
from kernbench.judging.candidate import CandidateFailed, CandidateProcess
from kernbench.judging.comparing import Expected, expect
from kernbench.judging.evidence import Writes, calls_of, evidence_of, unread_inputs, work_of
from kernbench.judging.holding import (
    OWN_CHECK,
    WrongCase,
    hold,
    hold_in_part,
    in_another_order,
    refuse_lazy,
)
from kernbench.judging.record import Record, RecordError, line_in
from kernbench.judging.recording import recorded
from kernbench.judging.simulation import in_simulation, on_ranks
from kernbench.judging.tasks import (
    MOST_ELEMENTS,
    SMALL_ELEMENTS,
    JudgedTask,
    TaskProblem,
    TaskSize,
    copied,
    count_elements,
    of_the_task,
    tensors_of,
    with_tensors,
)
from kernbench.judging.timing import executed_lines
from kernbench.judging.values import BESIDES, DRAWN, EXTREMES, ITS_OWN, SentTensor
from kernbench.judging.verdict import Failure, SizeResult, Verdict
from kernbench.runtime_api import RuntimeContext
from kernbench.torch_bridge import current_process

_MOST_IN_PART = 1 << 24
"""The most at which a part of a record's programs is."""
_MOST_WEIGHTS = 1 << 25
_MOST_RESULTS = 1 << 25
_FEW_ELEMENTS = 16
_MOST_SIZES = 6
"""How many sizes of the judge's own are tried."""
_MOST_SIZES_OF_RANKS = 3
_MOST_EXTREME = 2
"""At how many sizes, the largest of the small ones, extreme values are tried."""
_FEW_HOST_BYTES = 64
"""What the host may read and decide by, however small a result is."""
_STRIDED, _HUGE = "strided", "huge"


class UnknownOutcomeError(Exception):
    """Why nothing can be said."""


@dataclass(frozen=True)
class _Tried:
    """A size at which a candidate was right, and what was executed there."""

    size: TaskSize
    problem: TaskProblem
    inputs: Any
    record: Record
    count: int
    """Elements of its inputs."""


class CorrectnessJudge:
    """Executes a candidate's records on values, and notes in its verdict what it finds."""

    def __init__(self, task: JudgedTask, verdict: Verdict, own_kernels: set[str]) -> None:
        """Take a task; ``own_kernels``: the names of those that the candidate's text defines."""
        self.task, self._verdict, self._own_kernels = task, verdict, own_kernels
        self._writes: Writes = {}
        self.work_of: dict[str, set[str]] = {}
        """By size, which kernels and operations were executed with values."""
        self.lines: set[str] = set()
        """Lines of kernels that were."""
        self.whole: list[set[int]] = []
        """By execution, the numbers of the inputs of which it reads all."""
        self._at_timed: tuple[TaskSize, int, Record] | None = None
        """The size that is timed, the seed of a problem, and what was recorded of it."""
        self._tried: _Tried | None = None
        """The largest small size that was right."""
        self._extreme_at: set[str] = set()
        """Labels of the sizes at which extreme values are tried."""
        self._had_extremes = False
        self._knows_room = False
        self._read_of: tuple[int, int, TaskSize | None, WrongCase | None] = 0, 0, None, None
        """Bytes of the largest result whose host decides by values, the most that it reads there,
        and what is wrong if those are as many."""
        self.is_accepted = False
        """Whether the task's own check was asked about the last record, and took its results."""
        self._used_kernels = False
        self._used_library: set[str] = set()
        """Operations that results come from, at any size."""
        self.room: frozenset[int] = frozenset()
        """Inputs that are there for results alone, by number, as far as the reference has run."""

    def try_sizes(self, candidate: CandidateProcess, context: RuntimeContext) -> None:
        """Try sizes of a task of one rank, in its simulation, until one fails."""
        rng = random.Random(self._verdict.seed)
        sizes = self._sizes_of()
        # Which lines ran is asked for where a size is left out, and read from schedules.
        is_timed = self.task.has_weights or bool(self._verdict.sizes)
        with nullcontext() if is_timed else current_process().host.trying(None):
            self._try_each(sizes, rng, candidate)
        if self._verdict.failure is None:
            self._look_at_all()
            if is_timed:
                self.lines = executed_lines(context.op_log)

    def _try_each(
        self, sizes: list[TaskSize], rng: random.Random, candidate: CandidateProcess
    ) -> None:
        for size in sizes:
            seeds = rng.randrange(1 << 31), rng.randrange(1 << 31)
            try:
                problem, fresh = (self.task.build(size, seed) for seed in seeds)
            except Exception as error:
                self._leave_out(size, error)
                continue
            count = count_elements(problem.module.state_dict()) if problem.module else 0
            if count > _MOST_WEIGHTS:
                self._note_large(size, f"{count:,} weights")
                continue
            with self._noting(size):
                record = self._try_size(candidate, size, problem, fresh)
                if size.label == self.task.stated()[-1].label and not record.host_reads:
                    self._at_timed = size, seeds[0], record
            if self._verdict.failure is not None:
                return
        if self._tried is not None:
            self._look_besides(candidate, self._tried)

    def try_ranks(self, start: Callable[[], CandidateProcess], machine: str) -> None:
        """Try sizes of a task of several ranks, each in processes of its own."""
        rng, task = random.Random(self._verdict.seed), self.task
        sizes = in_simulation(lambda _: self._sizes_of(), machine)
        for size in [*[e for e in sizes if not e.is_stated][:_MOST_SIZES_OF_RANKS],
                     *[e for e in sizes if e.is_stated]]:  # fmt: skip
            seeds = rng.randrange(1 << 31), rng.randrange(1 << 31)
            tell = partial(_tell_rank, partial(task.build, size, seeds[0]), self._warm())
            try:
                messages = on_ranks(tell, machine, task.ranks)
            except Exception as error:
                self._leave_out(size, error)
                continue
            with self._noting(size), closing(start()) as candidate:
                work = partial(self._try_rank, size, seeds, candidate.call(*messages))
                self._note(size, "right", on_ranks(work, machine, task.ranks, check=True)[0])
            if self._verdict.failure is not None:
                return
        self._look_at_all()

    def try_part(self, record: Record, size: TaskSize, machine: str) -> None:
        """Execute a part of a record that is timed at a size too large for all of it."""
        count = self.task.num_elements(size) or 0
        has_state = any(storage["origin"] == "state" for storage in record.storages)
        if not MOST_ELEMENTS < count <= _MOST_IN_PART or has_state or self.task.ranks > 1:
            return
        seed, tolerance = self._verdict.seed, self.task.tolerance

        def execute(_: RuntimeContext) -> None:
            problem = self.task.build(size, seed)
            for name in (DRAWN, _HUGE):
                drawn = tensors_of(problem.inputs)
                if name == _HUGE:
                    drawn = self._changed(problem, drawn, EXTREMES[name])
                inputs = with_tensors(problem.inputs, drawn)
                expected = self._expect(problem, inputs)
                if name == _HUGE and not self._takes(problem, inputs):
                    continue
                hold_in_part(record, name, drawn, expected, tolerance, seed)

        try:
            in_simulation(execute, machine, check=True)
        except (RecordError, UnsupportedOpError, UsageError, MemoryError):
            return  # as large sizes are
        except WrongCase as wrong:
            self._fail(size, wrong)
        except KernbenchError as error:
            says = f"{type(error).__name__}: {error}"
            self._fail(size, WrongCase(says, DRAWN, line_in(says)))
        self._verdict.remarks.append(f"a part of its programs was executed at size {size.label}")

    def wrong_when_timed(self, record: Record, machine: str) -> str:
        """Return what is wrong of a record that is timed; empty if nothing is, or none was tried.

        It is executed where it does not do what the candidate did with values.
        """
        if self._at_timed is None or calls_of(record) == calls_of(self._at_timed[2]):
            return ""
        size, seed, tried = self._at_timed

        def execute(_: RuntimeContext) -> None:
            problem = self.task.build(size, seed)
            record.take_state_of(tried)
            self._execute(record, DRAWN, problem.inputs, self._expect(problem, problem.inputs))

        try:
            in_simulation(execute, machine, check=True)
        except (WrongCase, KernbenchError) as wrong:
            return str(wrong.says if isinstance(wrong, WrongCase) else wrong)
        return ""

    @contextmanager
    def _noting(self, size: TaskSize) -> Iterator[None]:
        """Note what fails of a size.

        Raises:
            UnknownOutcomeError: Nothing can be said of the candidate.
            UsageError: The reference fails.
        """
        try:
            yield
        except CandidateFailed as failed:
            self._refused(size, failed)
        except WrongCase as wrong:
            self._fail(size, wrong)
        except (RecordError, UnsupportedOpError) as error:
            raise UnknownOutcomeError(f"its record cannot be executed: {error}") from None
        except UsageError:
            if size.is_stated:
                raise  # elsewhere the task has no such size
        except KernbenchError as error:
            says = f"{type(error).__name__}: {error}"
            self._fail(size, WrongCase(says, DRAWN, line_in(says)))

    def _try_rank(
        self,
        size: TaskSize,
        seeds: tuple[int, int],
        records: list[Record],
        context: RuntimeContext,
        rank: int,
    ) -> list[str]:
        """Execute one rank's record on several values, beside the other ranks; return which.

        Raises:
            WrongCase: One of them comes out wrong.
        """
        record = records[rank]
        refuse_lazy(record)
        problem, fresh = (self.task.build(size, seed, rank) for seed in seeds)
        tried: list[str] = []
        values = self._values_of(size, problem, fresh)
        if any(recorded_call.host_reads for recorded_call in records):
            values = iter([(ITS_OWN, problem.inputs)])
        for name, inputs in values:
            try:
                self._execute(record, name, inputs, self._expect(problem, inputs))
            except WrongCase as wrong:
                wrong.says = f"rank {rank}: {wrong.says}"
                raise
            tried.append(name)
        if rank == 0:
            self._look_at(record, None)
            self._verdict.remarks += record.remarks
        return tried

    def _sizes_of(self) -> list[TaskSize]:
        """Return the sizes to try, the small ones first, as the first that fails is reported."""
        seen, tried = set(), 0
        chosen: list[tuple[int, TaskSize]] = []
        small: list[tuple[int, str]] = []
        task = self.task
        own, stated = list(task.beside(self._verdict.seed)), task.stated()
        for size in [*own, *stated]:
            key = repr(size.settings)
            if key in seen or (not size.is_stated and tried >= _MOST_SIZES):
                continue
            seen.add(key)
            count = task.num_elements(size)
            if count is None and not size.is_stated:
                continue
            if count is not None and count > MOST_ELEMENTS:
                self._note_large(size, f"{count:,} elements")
                continue
            results = task.num_results.get(size.label, 0)
            if results > _MOST_RESULTS:
                self._note_large(size, f"{results:,} elements of results")
                continue
            tried += not size.is_stated
            if count is not None and count <= SMALL_ELEMENTS:
                small.append((count, size.label))
            chosen.append((MOST_ELEMENTS if count is None else count, size))
        self._extreme_at = {label for _, label in sorted(small)[-_MOST_EXTREME:]}
        # Of a few elements many kernels are right by chance, or wrong for another reason.
        ordered = sorted(chosen, key=lambda pair: (pair[0] < _FEW_ELEMENTS, pair[0]))
        return [size for _, size in ordered]

    def _note_large(self, size: TaskSize, what: str) -> None:
        self._note(size, "not executed")
        remark = f"size {size.label} has {what} and was not executed with values"
        self._verdict.remarks.append(remark)

    def _warm(self) -> int:
        return 1 + len(self._verdict.sizes) % 2

    def _leave_out(self, size: TaskSize, error: Exception) -> None:
        """Leave out a size at which the task fails by itself.

        Raises:
            UsageError: The task states it.
        """
        if size.is_stated:
            raise UsageError(
                f"{self.task.path}: the task fails by itself at size {size.label}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _try_size(
        self, candidate: CandidateProcess, size: TaskSize, problem: TaskProblem, fresh: TaskProblem
    ) -> Record:
        """Execute the record of a size on several values, and return it.

        Raises:
            WrongCase: One of them comes out wrong.
        """
        try:
            (record,) = candidate.call(_message(problem, self._warm()))
        except CandidateFailed as failed:
            began = monotonic()
            self._expect(problem, problem.inputs)  # where it fails, too, the task is no task
            took_s = monotonic() - began
            if failed.kinds == ["TimeoutError"] and took_s > candidate.limits.seconds / 4:
                raise UnknownOutcomeError(
                    f"{failed.says}, and the reference takes {took_s:.0f} s here itself"
                ) from None
            raise
        self.work_of[size.label] = work_of(record)
        refuse_lazy(record)
        self._note_replaced(record)
        tried: list[str] = []
        count = count_elements(problem.inputs)
        for name, inputs in self._values_of(size, problem, fresh):
            try:
                expected = self._expect(problem, inputs)
            except UsageError:
                if name in EXTREMES:
                    continue  # the task does not take such numbers
                raise
            if name in EXTREMES and not self._takes(problem, inputs):
                continue
            try:
                self._execute(record, name, inputs, expected)
            except WrongCase as wrong:
                if not (name == DRAWN and record.host_reads):
                    raise
                self._with_its_values(candidate, size, record, problem, inputs, wrong)
                tried.append(ITS_OWN)
                break
            tried.append(name)
            is_largest = self._tried is None or count >= self._tried.count
            is_small = count <= SMALL_ELEMENTS
            if name == DRAWN and is_small and is_largest and not record.host_reads:
                self._tried = _Tried(size, problem, inputs, record, count)
        self._look_at(record, problem)
        self._note(size, "right", tried)
        return record

    def _note(
        self, size: TaskSize, outcome: str, values: Sequence[str] = (), says: str = ""
    ) -> None:
        result = SizeResult(size.label, size.is_stated, outcome, list(values), says)
        others = [item for item in self._verdict.sizes if item.size != size.label]
        self._verdict.sizes = [*others, result]

    def _values_of(
        self, size: TaskSize, problem: TaskProblem, fresh: TaskProblem
    ) -> Iterator[tuple[str, Any]]:
        """Yield what inputs are filled with, by name: what the task draws, perhaps the extreme."""
        count = self.task.num_elements(size) or MOST_ELEMENTS
        if count > SMALL_ELEMENTS and not self._had_extremes:
            self._extreme_at.add(size.label)  # the reference takes no smaller one
        value, drawn = tensors_of(problem.inputs), tensors_of(fresh.inputs)
        if [(e.shape, e.dtype) for e in value] != [(e.shape, e.dtype) for e in drawn]:
            self._verdict.remarks.append(
                "its inputs differ in form by seed: numbers alone were drawn anew"
            )
            drawn = [e.roll(1) if e.is_floating_point() and e.numel() > 1 else e for e in value]
        yield DRAWN, with_tensors(problem.inputs, drawn)
        if size.label in self._extreme_at and any(item.is_floating_point() for item in drawn):
            self._had_extremes = True
            for name, change in EXTREMES.items():
                changed = self._changed(problem, drawn, change)
                if any(a is not b for a, b in zip(changed, drawn, strict=True)):
                    yield name, with_tensors(problem.inputs, changed)

    def _changed(
        self, problem: TaskProblem, tensors: list[Tensor], change: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        """Return numbers that the reference reads by others, and what it does not read as it is."""
        room = self._room_of(problem)
        return [
            change(tensor)
            if tensor.is_floating_point() and tensor.numel() and index not in room
            else tensor
            for index, tensor in enumerate(tensors)
        ]

    def _room_of(self, problem: TaskProblem) -> frozenset[int]:
        """Return which inputs are room for results, as the reference's operations show."""
        if self.task.has_room and self.task.ranks == 1 and not self._knows_room:
            self._knows_room = True
            with of_the_task(self.task.path, "the reference fails by itself"):
                self.room = unread_inputs(recorded(problem.reference, copied(problem.inputs)))
        return self.room

    def _takes(self, problem: TaskProblem, inputs: Any) -> bool:
        """Return whether a task takes inputs of the judge's own: what it says of its reference."""
        if not self.task.has_check:
            return True
        with torch.no_grad():
            return self.task.accepts(inputs, problem.reference(*copied(inputs)))

    def _expect(self, problem: TaskProblem, inputs: Any) -> Expected:
        """Return what the reference makes of inputs.

        Raises:
            UsageError: It fails.
        """
        with of_the_task(self.task.path, "the reference fails by itself"):
            expected = expect(problem.reference, inputs)
        room, accepts = self._room_of(problem), partial(self.task.accepts, inputs)
        return replace(expected, room=room, accepts=accepts)

    def _execute(self, record: Record, values: str, inputs: Any, expected: Expected) -> None:
        """Execute a record on inputs and hold it to what is expected.

        Raises:
            WrongCase: It is not that.
        """
        executor, remarks = hold(record, values, tensors_of(inputs), expected, self.task.tolerance)
        self._writes = executor.writes
        if values in (DRAWN, ITS_OWN):
            self.is_accepted = OWN_CHECK in remarks
        self.whole.append(set(range(len(record.inputs))).difference(executor.unread()))
        self._verdict.remarks += remarks

    def _with_its_values(
        self,
        candidate: CandidateProcess,
        size: TaskSize,
        record: Record,
        problem: TaskProblem,
        inputs: Any,
        wrong: WrongCase,
    ) -> None:
        """Execute a record that was decided by data on its values, and one of ``inputs`` on those.

        Raises:
            WrongCase: One is wrong on those, too, or what the host computed reaches its results.
            UnknownOutcomeError: In its next call with them it does other work.
        """
        value = tensors_of(problem.inputs)
        expected = self._expect(problem, problem.inputs)
        num_bytes = sum(item.nbytes for item in expected.plain)
        evidence = evidence_of(record)
        if evidence.from_before or not evidence.depends_on_inputs:
            raise wrong
        read = record.host_bytes
        whole = min(num_bytes, sum(item.nbytes for item in value))
        wrong.trick = (
            f"its result is computed on the host: it reads {read:,} bytes of the device and "
            f"brings {evidence.depends_on_host:,} back; the rest comes as numbers of launches"
        )
        if evidence.depends_on_host * 2 >= num_bytes:
            raise wrong
        # Of a small result a few decisions are as much as the whole.
        is_all = read > _FEW_HOST_BYTES and read * 2 >= whole
        if (num_bytes, read) >= self._read_of[:2]:
            self._read_of = num_bytes, read, size, wrong if is_all else None
        self._execute(record, ITS_OWN, problem.inputs, expected)
        # What an earlier call has left is of its values, however the host decides.
        other = TaskProblem(problem.reference, inputs, problem.init, problem.module)
        (record,), (again,) = (candidate.call(_message(other, warm)) for warm in (0, 1))
        self._execute(record, DRAWN, inputs, self._expect(problem, inputs))
        if calls_of(record) != calls_of(again):
            raise UnknownOutcomeError(
                "the host decides by values of the device, and in a later call with the same ones "
                "it does other work"
            )
        self._verdict.remarks.append(
            "the host decides by values of the device, so that each record was executed on the "
            "values that it was run with"
        )

    def _refused(self, size: TaskSize, failed: CandidateFailed) -> None:
        kinds = set(failed.kinds)
        if kinds & {"UnsupportedOpError", "UnsupportedTorchError", "NotImplementedError"}:
            raise UnknownOutcomeError(f"it uses what is not simulated: {failed}") from None
        if "RecordError" in kinds:
            raise UnknownOutcomeError(f"it cannot be recorded: {failed.says}") from None
        if "ModuleNotFoundError" in kinds:
            raise UnknownOutcomeError(
                f"it needs a package that is not here: {failed.says}"
            ) from None
        is_mistake = bool(kinds & {"KernbenchError", "TimeoutError", "ProcessEnded"})
        if size.is_stated or is_mistake:
            self._fail(size, WrongCase(str(failed), DRAWN, failed.line))
        else:
            self._note(size, "refused", says=str(failed)[:200])

    def _fail(self, size: TaskSize, wrong: WrongCase) -> None:
        """Note the case that failed."""
        says = f"{wrong.says}; {wrong.writer}" if wrong.writer else wrong.says
        self._verdict.failure = Failure(size.label, wrong.values, says, wrong.line)
        self._note(size, "wrong", [wrong.values], wrong.says)
        if wrong.trick and wrong.trick not in self._verdict.tricks:
            self._verdict.tricks.append(wrong.trick)

    def _note_replaced(self, record: Record) -> None:
        """Note a record's remarks; what the candidate replaces is a trick."""
        for remark in record.remarks:
            if not remark.startswith("it replaces"):
                self._verdict.remarks.append(remark)
            elif not any(trick.startswith(remark) for trick in self._verdict.tricks):
                self._verdict.tricks.append(remark)

    def _look_at(self, record: Record, problem: TaskProblem | None) -> None:
        """Note what a record shows although its results are right."""
        evidence = evidence_of(record, self._writes if problem else None)
        if evidence.narrowed and problem is not None and not self._narrows(problem):
            says = f"it computes in fewer bits than the task's types have: {evidence.narrowed}"
            if self.is_accepted:
                self._verdict.remarks.append(f"{says}, which the task's own check lets pass")
            elif says not in self._verdict.tricks:
                self._verdict.tricks.append(says)
        self._used_kernels |= bool(evidence.own_kernels)
        self._used_library |= evidence.library
        if evidence.reduced:
            self._verdict.remarks.append(
                "products of float32 are of TF32, as Triton's tl.dot has it"
            )

    def _look_at_all(self) -> None:
        """Note what the records of all sizes together show."""
        *_, size, wrong = self._read_of
        if size is not None and wrong is not None:
            self._fail(size, wrong)
        if self._own_kernels and self._used_library and not self._used_kernels:
            names = ", ".join(sorted(self._used_library)[:3])
            self._verdict.tricks.append(
                f"its result comes from PyTorch's operations alone ({names}), not from the kernels "
                "that it defines"
            )

    def _narrows(self, problem: TaskProblem) -> bool:
        """Return whether the reference itself computes in fewer bits."""
        return bool(evidence_of(recorded(problem.reference, copied(problem.inputs))).narrowed)

    def _look_besides(self, candidate: CandidateProcess, tried: _Tried) -> None:
        """Try what a task need not ask for, at one size: wrong if it does, a remark if not."""
        size, problem = tried.size, tried.problem
        try:
            again = in_another_order(tried.record, tensors_of(tried.inputs), self.task.tolerance)
            self._verdict.remarks += again
        except WrongCase as wrong:
            self._verdict.failure = Failure(size.label, wrong.values, wrong.says, wrong.line)
            return
        for name, change in BESIDES.items():
            tensors = tensors_of(tried.inputs)
            record = tried.record
            try:
                changed = self._changed(problem, tensors, change)
                inputs = with_tensors(tried.inputs, changed)
                expected = self._expect(problem, inputs)
            except Exception:  # the reference does not take such inputs
                continue
            try:
                if name == _STRIDED:
                    other = TaskProblem(problem.reference, inputs, problem.init, problem.module)
                    (record,) = candidate.call(_message(other, 1))
                self._execute(record, name, inputs, expected)
            except (CandidateFailed, RecordError, UnsupportedOpError):  # it refuses them
                continue
            except WrongCase as wrong:
                says = f"with {name} values in its inputs"
                says = "with inputs that are not contiguous" if name == _STRIDED else says
                if name in self.task.besides:
                    self._verdict.failure = Failure(size.label, name, wrong.says, wrong.line)
                    return
                self._verdict.remarks.append(
                    f"{says}, which the task does not ask for: {wrong.says}"
                )


def _tell_rank(
    build: Callable[[int], TaskProblem], warm: int, context: RuntimeContext, rank: int
) -> dict[str, Any]:
    return _message(build(rank), warm)


def _message(problem: TaskProblem, warm: int) -> dict[str, Any]:
    """Return what a candidate's process is told of a problem: on the host, by value.

    ``warm``: how many calls come before the recorded one. Now one, now two: a candidate that works
    on each second call is seen on the others, too.
    """
    state = problem.module.state_dict() if problem.module else {}
    return {
        "inputs": with_tensors(problem.inputs, list(map(SentTensor, tensors_of(problem.inputs)))),
        "init": problem.init,
        "state": {name: SentTensor(tensor) for name, tensor in state.items()},
        "warm": warm,
    }
