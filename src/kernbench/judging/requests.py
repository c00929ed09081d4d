"""Judging one candidate, in a process that never runs any of its code."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernbench.errors import KernbenchError, NoDataError, UnsupportedOpError, UsageError
from kernbench.inputs import read_text
from kernbench.judging.candidate import CandidateFailed, CandidateProcess, Hollow
from kernbench.judging.comparing import Expected, difference, expect, is_same
from kernbench.judging.evidence import Evidence, Writes, evidence_of, shared_memory, work_of
from kernbench.judging.executing import Executor, parts_of
from kernbench.judging.limits import CandidateLimits
from kernbench.judging.places import line_in, store_line
from kernbench.judging.record import Record, RecordError
from kernbench.judging.recording import CallRecorder
from kernbench.judging.scanning import Scan, scan
from kernbench.judging.simulation import in_simulation, on_ranks
from kernbench.judging.tasks import (
    SMALL_ELEMENTS,
    JudgedTask,
    TaskProblem,
    TaskSize,
    load_task,
    tensors_of,
    with_tensors,
)
from kernbench.judging.timing import (
    TimedRecord,
    executed_lines,
    floor_ns,
    machine_time,
    time_record,
)
from kernbench.judging.values import BESIDES, DRAWN, EXTREMES, ITS_OWN, on_host
from kernbench.judging.verdict import Failure, MachineTime, Outcome, SizeResult, Verdict

if TYPE_CHECKING:
    from kernbench.runtime_api import RuntimeContext

_MOST_SOURCE_BYTES = 1 << 20
_MOST_ELEMENTS = 1 << 22
"""The most elements of inputs at which records are executed with values."""
_FEW_ELEMENTS = 16
_MOST_SIZES_OF_RANKS = 3
_FEW_HOST_BYTES = 64
"""What the host may read and decide by, however small a result is."""
_STRIDED = "strided"
_UNORDERED = frozenset(
    (
        "scatter_add",
        "scatter_add_",
        "index_add",
        "index_add_",
        "bincount",
        "histc",
        "scatter_reduce",
        "put_",
        "_index_put_impl_",
        "embedding_dense_backward",
    )
)
"""PyTorch's operations that a GPU executes by atomics. Source: the page of
``torch.use_deterministic_algorithms``."""
_MOST_SIZES = 6
"""How many sizes of the judge's own are tried."""


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


class _Wrong(Exception):  # noqa: N818 - no error of anyone's program
    """A case whose record is wrong: what is said of it, and whose line it is."""

    def __init__(
        self, says: str, values: str, line: str = "", trick: str = "", writer: str = ""
    ) -> None:
        super().__init__(says)
        self.says, self.values, self.line, self.trick = says, values, line, trick
        self.writer = writer


@dataclass(frozen=True)
class _Tried:
    """A size at which a candidate was right, and what was executed there."""

    size: TaskSize
    problem: TaskProblem
    inputs: Any
    record: Record
    evidence: Evidence
    count: int
    """Elements of its inputs."""


def _loaded(path: Path) -> tuple[JudgedTask, TaskSize]:
    """Return a task, and the size of it that is timed."""
    task = load_task(path)
    return task, task.stated()[-1]


@contextmanager
def _of_the_task(path: Path, what: str) -> Iterator[None]:
    """Turn an error of a task's own into one that its author can read."""
    try:
        yield
    except (KernbenchError, KeyboardInterrupt):
        raise
    except BaseException as error:  # it may exit, too
        raise UsageError(f"{path}: {what}: {type(error).__name__}: {str(error)[:1000]}") from error


class _UnknownError(Exception):
    """Why nothing can be said."""


def judge_request(request: JudgeRequest) -> Verdict:
    """Return the verdict on a candidate. The calling process must run nothing else: it forks.

    Raises:
        UsageError: The task or the candidate cannot be read, or the reference fails by itself.
    """
    began = _cpu_s()
    seed = random.SystemRandom().randrange(1 << 31) if request.seed is None else request.seed
    try:
        text = read_text(request.candidate, _MOST_SOURCE_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{request.candidate}: cannot be read: {why}") from None
    judging = _Judging(request, seed, scan(text))
    verdict = judging.verdict()
    verdict.cpu_s = round(_cpu_s() - began, 3)
    return verdict


def _cpu_s() -> float:
    """Return the CPU time of this process and of the candidates' that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


class _Judging:
    """The judging of one candidate."""

    def __init__(self, request: JudgeRequest, seed: int, scanned: Scan) -> None:
        self._request, self._seed, self._scan = request, seed, scanned
        self._sizes: list[SizeResult] = []
        self._remarks: list[str] = []
        self._failure: Failure | None = None
        self._tricks = list(scanned.tricks)
        self._times: list[MachineTime] = []
        self._writes: Writes = {}
        self._work_of: dict[str, set[str]] = {}
        """By size, which kernels and operations were executed with values."""
        self._lines: set[str] = set()
        """Lines of kernels that were."""
        self._tried: _Tried | None = None
        """The largest small size that was right."""

    def verdict(self) -> Verdict:
        scanned, request = self._scan, self._request
        form = ""
        if scanned.error:
            return self._verdict(form, Outcome.WRONG, scanned.error)
        if scanned.cuda:
            return self._verdict(
                form,
                Outcome.UNKNOWN,
                f"it is CUDA C++ ({scanned.cuda}), which is not simulated; candidates are Triton, "
                "Gluon, Helion or PyTorch",
            )
        with _of_the_task(request.task, "it cannot be loaded"):
            task, size = in_simulation(lambda _: _loaded(request.task), request.machines[0])
        form = task.form
        try:
            if request.values:
                self._judge_values(task)
            if self._failure is None and request.times:
                self._judge_times(task, size)
        except _UnknownError as error:
            return self._verdict(form, Outcome.UNKNOWN, str(error))
        except CandidateFailed as error:
            return self._verdict(form, Outcome.WRONG, f"it does not run: {error}")
        if self._tricks:
            return self._verdict(form, Outcome.CHEAT, self._tricks[0])
        if self._failure is not None:
            why = self._failure.says.partition("\n")[0].rstrip(":")
            return self._verdict(form, Outcome.WRONG, why)
        if request.values and not any(size.outcome == "right" for size in self._sizes):
            return self._verdict(form, Outcome.UNKNOWN, "none of its sizes could be executed")
        is_fast = bool(self._times) and all(
            time.speedup_low is not None and time.speedup_low >= request.at_least
            for time in self._times
        )
        num = sum(size.outcome == "right" for size in self._sizes)
        said = f"it computes what the reference does at {num} sizes"
        if self._times:
            said += f"; {self._times[0].machine}: {self._times[0].speed}"
        return self._verdict(form, Outcome.FAST if is_fast else Outcome.RIGHT, said)

    def _verdict(self, form: str, outcome: Outcome, why: str) -> Verdict:
        return Verdict(
            candidate=str(self._request.candidate),
            task=str(self._request.task),
            form=form,
            outcome=outcome,
            why=why,
            seed=self._seed,
            failure=self._failure,
            sizes=self._sizes,
            times=self._times,
            tricks=self._tricks,
            remarks=list(dict.fromkeys(self._remarks)),
        )

    def _process(self, task: JudgedTask, machine: str, *, data: bool) -> CandidateProcess:
        request = self._request
        return CandidateProcess(
            request.candidate.resolve(), task, machine, request.limits, data=data
        )

    # Right or wrong

    def _judge_values(self, task: JudgedTask) -> None:
        machine = self._request.machines[0]
        self._tolerance = task.tolerance
        if task.ranks > 1:
            self._try_ranks(task, machine)
            return
        candidate = self._process(task, machine, data=True)
        try:
            in_simulation(partial(self._try_sizes, task, candidate), machine, check=True)
        finally:
            candidate.close()

    def _try_ranks(self, task: JudgedTask, machine: str) -> None:
        """Try sizes of a task of several ranks, each in processes of its own."""
        rng = random.Random(self._seed)
        sizes = in_simulation(lambda _: self._sizes_of(task), machine)
        for size in [*[e for e in sizes if not e.is_stated][:_MOST_SIZES_OF_RANKS],
                     *[e for e in sizes if e.is_stated]]:  # fmt: skip
            seeds = rng.randrange(1 << 31), rng.randrange(1 << 31)
            try:
                build = partial(_built_message, task, size, seeds[0])
                messages = on_ranks(build, machine, task.ranks)
            except Exception as error:
                self._leave_out(size, error)
                continue
            candidate = self._process(task, machine, data=True)
            try:
                records = candidate.call(*messages)
                work = partial(self._try_rank, task, size, seeds, records)
                tried = on_ranks(work, machine, task.ranks, check=True)
                self._sizes.append(SizeResult(size.label, size.is_stated, "right", tried[0]))
            except CandidateFailed as failed:
                try:
                    self._refused(size, failed)
                except _Wrong as wrong:
                    self._fail(size, wrong)
                    return
            except _Wrong as wrong:
                self._fail(size, wrong)
                return
            except (RecordError, UnsupportedOpError) as error:
                raise _UnknownError(f"its record cannot be executed: {error}") from None
            except KernbenchError as error:
                says = f"{type(error).__name__}: {error}"
                self._fail(size, _Wrong(says, DRAWN, line_in(says)))
                return
            finally:
                candidate.close()

    def _try_rank(
        self,
        task: JudgedTask,
        size: TaskSize,
        seeds: tuple[int, int],
        records: list[Record],
        context: RuntimeContext,
        rank: int,
    ) -> list[str]:
        """Execute one rank's record on several values, beside the other ranks; return which.

        Raises:
            _Wrong: One of them comes out wrong.
        """
        record, evidence = records[rank], evidence_of(records[rank])
        _refuse_lazy(record)
        problem, fresh = (task.build(size, seed, rank) for seed in seeds)
        count = sum(tensor.numel() for tensor in tensors_of(problem.inputs))
        tried: list[str] = []
        values = [(ITS_OWN, problem.inputs)] if any(e.host_reads for e in records) else list(
            self._values_of(problem, fresh, is_small=count <= SMALL_ELEMENTS)
        )  # fmt: skip
        for name, inputs in values:
            expected = self._expect(problem, inputs)
            try:
                self._execute(record, evidence, name, inputs, expected)
            except _Wrong as wrong:
                wrong.says = f"rank {rank}: {wrong.says}"
                raise
            tried.append(name)
        if rank == 0:
            self._look_at(evidence, None)
            self._remarks += record.remarks
        return tried

    def _leave_out(self, size: TaskSize, error: Exception) -> None:
        """Leave out a size at which the task fails by itself.

        Raises:
            UsageError: The task states it.
        """
        if size.is_stated:
            raise UsageError(
                f"{self._request.task}: the task fails by itself at size {size.label}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _fail(self, size: TaskSize, wrong: _Wrong) -> None:
        """Note the case that failed."""
        says = f"{wrong.says}; {wrong.writer}" if wrong.writer else wrong.says
        self._failure = Failure(size.label, wrong.values, says, wrong.line)
        self._sizes.append(
            SizeResult(size.label, size.is_stated, "wrong", [wrong.values], wrong.says)
        )
        if wrong.trick and wrong.trick not in self._tricks:
            self._tricks.append(wrong.trick)

    def _try_sizes(
        self, task: JudgedTask, candidate: CandidateProcess, context: RuntimeContext
    ) -> None:
        rng = random.Random(self._seed)
        for size in self._sizes_of(task):
            seeds = rng.randrange(1 << 31), rng.randrange(1 << 31)
            try:
                problem = task.build(size, seeds[0])
                fresh = task.build(size, seeds[1])
            except Exception as error:
                self._leave_out(size, error)
                continue
            try:
                self._try_size(candidate, size, problem, fresh)
            except _Wrong as wrong:
                self._fail(size, wrong)
                return
            except (RecordError, UnsupportedOpError) as error:
                raise _UnknownError(f"its record cannot be executed: {error}") from None
        if any(size.outcome == "not executed" for size in self._sizes):
            self._lines = executed_lines(context.op_log)
        if self._tried is not None:
            self._look_besides(task, candidate, self._tried)

    def _look_besides(self, task: JudgedTask, candidate: CandidateProcess, tried: _Tried) -> None:
        """Try what a task need not ask for, at one size: wrong if it does, a remark if not."""
        size, problem = tried.size, tried.problem
        try:
            self._look_again(tried)
        except _Wrong as wrong:
            self._failure = Failure(size.label, wrong.values, wrong.says, wrong.line)
            return
        for name, change in BESIDES.items():
            tensors = tensors_of(tried.inputs)
            changed = [change(e) if e.is_floating_point() and e.numel() else e for e in tensors]
            inputs = with_tensors(tried.inputs, changed)
            record, evidence = tried.record, tried.evidence
            try:
                expected = expect(problem.reference, inputs)
            except Exception:  # the reference does not take such inputs
                continue
            try:
                if name == _STRIDED:
                    other = TaskProblem(problem.reference, inputs, problem.init, problem.module)
                    (record,) = candidate.call(_message(other))
                    evidence = evidence_of(record)
                self._execute(record, evidence, name, inputs, expected)
            except (CandidateFailed, RecordError, UnsupportedOpError):  # it refuses them
                continue
            except _Wrong as wrong:
                says = f"with {name} values in its inputs"
                says = "with inputs that are not contiguous" if name == _STRIDED else says
                if name in task.besides:
                    self._failure = Failure(size.label, name, wrong.says, wrong.line)
                    return
                self._remarks.append(f"{says}, which the task does not ask for: {wrong.says}")

    def _look_again(self, tried: _Tried) -> None:
        """Execute a record twice, the second time in another order, where that may matter.

        Programs that do not race and share no atomics cannot tell their order.

        Raises:
            _Wrong: In another order its results are wrong.
        """
        record = tried.record
        atomics = any("tt.atomic" in kernel["ttir"] for kernel in record.kernels)
        names = {parts_of(step.get("op", ""))[1] for step in record.steps}
        unordered = sorted(names & _UNORDERED)
        if unordered:
            self._remarks.append(
                f"{', '.join(unordered)} adds in an order that a GPU does not fix: bits may differ"
            )
        if not atomics and not any("draws random numbers" in remark for remark in record.remarks):
            return
        tensors = tensors_of(tried.inputs)
        try:
            first, second = (
                [
                    e.cpu()
                    for e in tensors_of(Executor(record, tensors, backwards=way).run().results)
                ]
                for way in (False, True)
            )
        except RecordError:
            raise
        except KernbenchError as error:
            says = str(error).partition("\n")[0]
            self._remarks.append(f"it depends on the order in which its programs begin: {says}")
            return
        if all(map(is_same, first, second)):
            return
        wrong = difference(
            second, first, [None] * len(first), self._tolerance, reduced=tried.evidence.reduced
        )
        if wrong is not None:
            raise _Wrong(f"in another order of its programs {wrong.says}", DRAWN)
        self._remarks.append(
            "non-deterministic: in another order of its programs results differ within rounding"
        )

    def _sizes_of(self, task: JudgedTask) -> list[TaskSize]:
        """Return the sizes to try, the small ones first, as the first that fails is reported."""
        seen, tried = set(), 0
        chosen: list[tuple[int, TaskSize]] = []
        own = list(task.beside())
        stated = task.stated()
        for size in [*own, *stated]:
            key = tuple(size.settings.items())
            if key in seen or (not size.is_stated and tried >= _MOST_SIZES):
                continue
            seen.add(key)
            count = task.num_elements(size)
            if count is None and not size.is_stated:
                continue
            if count is not None and count > _MOST_ELEMENTS:
                self._sizes.append(SizeResult(size.label, size.is_stated, "not executed"))
                self._remarks.append(
                    f"size {size.label} has {count:,} elements and was not executed with values"
                )
                continue
            tried += not size.is_stated
            chosen.append((_MOST_ELEMENTS if count is None else count, size))
        # Of a few elements many kernels are right by chance, or wrong for another reason.
        ordered = sorted(chosen, key=lambda pair: (pair[0] < _FEW_ELEMENTS, pair[0]))
        return [size for _, size in ordered]

    def _try_size(
        self, candidate: CandidateProcess, size: TaskSize, problem: TaskProblem, fresh: TaskProblem
    ) -> None:
        """Execute the record of a size on several values.

        Raises:
            _Wrong: One of them comes out wrong.
        """
        try:
            (record,) = candidate.call(_message(problem))
        except CandidateFailed as failed:
            if size.is_stated:
                self._expect(problem, problem.inputs)  # where it fails, too, the task is no task
            self._refused(size, failed)
            return
        evidence = evidence_of(record)
        self._work_of[size.label] = work_of(record)
        _refuse_lazy(record)
        self._note_replaced(record)
        tried: list[str] = []
        count = sum(tensor.numel() for tensor in tensors_of(problem.inputs))
        is_small = count <= SMALL_ELEMENTS
        for name, inputs in self._values_of(problem, fresh, is_small=is_small):
            expected = self._expect(problem, inputs)
            try:
                self._execute(record, evidence, name, inputs, expected)
            except _Wrong as wrong:
                if not (name == DRAWN and record.host_reads):
                    raise
                name = self._with_its_values(record, evidence, problem, wrong)
                tried.append(name)
                break
            tried.append(name)
            is_largest = self._tried is None or count >= self._tried.count
            if name == DRAWN and is_small and is_largest and not record.host_reads:
                self._tried = _Tried(size, problem, inputs, record, evidence, count)
        self._look_at(evidence_of(record, self._writes), problem)
        self._sizes.append(SizeResult(size.label, size.is_stated, "right", tried))

    def _note_replaced(self, record: Record) -> None:
        """Note a record's remarks; what the candidate replaces is a trick."""
        for remark in record.remarks:
            if not remark.startswith("it replaces"):
                self._remarks.append(remark)
            elif not any(trick.startswith(remark) for trick in self._tricks):
                self._tricks.append(remark)

    def _expect(self, problem: TaskProblem, inputs: Any) -> Expected:
        """Return what the reference makes of inputs.

        Raises:
            UsageError: It fails.
        """
        with _of_the_task(self._request.task, "the reference fails by itself"):
            return expect(problem.reference, inputs)

    def _refused(self, size: TaskSize, failed: CandidateFailed) -> None:
        kinds = set(failed.kinds)
        if kinds & {"UnsupportedOpError", "UnsupportedTorchError", "NotImplementedError"}:
            raise _UnknownError(f"it uses what is not simulated: {failed}") from None
        if "RecordError" in kinds:
            raise _UnknownError(f"it cannot be recorded: {failed.says}") from None
        if "ModuleNotFoundError" in kinds:
            raise _UnknownError(f"it needs a package that is not here: {failed.says}") from None
        is_mistake = bool(kinds & {"KernbenchError", "TimeoutError", "ProcessEnded"})
        if size.is_stated or is_mistake:
            raise _Wrong(str(failed), DRAWN, failed.line) from None
        self._sizes.append(SizeResult(size.label, False, "refused", [], str(failed)[:200]))

    def _values_of(
        self, problem: TaskProblem, fresh: TaskProblem, *, is_small: bool
    ) -> Iterator[tuple[str, Any]]:
        """Yield what inputs are filled with, by name: what the task draws, and the extreme."""
        value, drawn = tensors_of(problem.inputs), tensors_of(fresh.inputs)
        same_form = len(value) == len(drawn) and all(
            a.shape == b.shape and a.dtype == b.dtype for a, b in zip(value, drawn, strict=True)
        )
        if same_form:
            yield DRAWN, with_tensors(problem.inputs, drawn)
        else:
            self._remarks.append("its inputs differ in form by seed: numbers alone were drawn anew")
            drawn = [
                item.flip(0) if item.is_floating_point() and item.dim() else item for item in value
            ]
            yield DRAWN, with_tensors(problem.inputs, drawn)
        if is_small and any(item.is_floating_point() for item in drawn):
            for name, change in EXTREMES.items():
                changed = [change(e) if e.is_floating_point() else e for e in drawn]
                yield name, with_tensors(problem.inputs, changed)

    def _with_its_values(
        self, record: Record, evidence: Evidence, problem: TaskProblem, wrong: _Wrong
    ) -> str:
        """Execute a record that was decided by data on the values that decided it.

        Raises:
            _Wrong: It is wrong on those, too, or what the host computed reaches its results.
        """
        value = tensors_of(problem.inputs)
        expected = self._expect(problem, problem.inputs)
        num_bytes = sum(item.nbytes for item in expected.plain)
        if evidence.from_before or not evidence.depends_on_inputs:
            raise wrong
        read = record.host_bytes
        whole = min(num_bytes, sum(item.nbytes for item in value))
        if evidence.depends_on_host * 2 >= num_bytes or (
            read > _FEW_HOST_BYTES and read * 2 >= whole
        ):
            trick = (
                f"its result is computed on the host: it reads {read:,} bytes of the device and "
                f"brings {evidence.depends_on_host:,} back; the rest comes as numbers of launches"
            )
            raise _Wrong(wrong.says, wrong.values, wrong.line, trick)
        # What decides are integers, often: then floats may be others.
        half = [item * 0.5 if item.is_floating_point() else item for item in value]
        for name, tensors in (("halved", half), (ITS_OWN, value)):
            inputs = with_tensors(problem.inputs, tensors)
            try:
                self._execute(record, evidence, name, inputs, self._expect(problem, inputs))
            except _Wrong:
                if name == ITS_OWN:
                    raise
                continue
            self._remarks.append(
                "the host decides by values of the device, so that the record was executed on "
                f"the values that it was run with ({name})"
            )
            return name
        raise AssertionError

    def _execute(
        self, record: Record, evidence: Evidence, values: str, inputs: Any, expected: Expected
    ) -> None:
        """Execute a record on inputs and hold it to what is expected.

        Raises:
            _Wrong: It is not that.
        """
        tensors = tensors_of(inputs)
        try:
            executor = Executor(record, tensors)
            done = executor.run()
            self._writes = executor.writes
            left = [item.cpu() for item in done.inputs]
            results = [tensor.cpu() for tensor in tensors_of(done.results)]
        except RecordError:
            raise
        except UnsupportedOpError:
            raise
        except KernbenchError as error:
            says = str(error).partition("\n")[0]
            raise _Wrong(f"{type(error).__name__}: {says}", values, line_in(says)) from None
        line = ""
        if evidence.last_kernel is not None:
            line = store_line(record.kernels[evidence.last_kernel]["ttir"])
        tolerance, reduced = self._tolerance, evidence.reduced
        wrong = difference(results, expected.plain, expected.exact, tolerance, reduced=reduced)
        if wrong is not None:
            writer = executor.writer_of(wrong) if line else ""
            raise _Wrong(
                wrong.says, values, line_in(writer) or line,
                self._trick_of(evidence, expected), writer,
            )  # fmt: skip
        for index, (mine, theirs, before) in enumerate(
            zip(left, expected.inputs, tensors, strict=True)
        ):
            if is_same(theirs, before.cpu()):
                if not is_same(mine, theirs):
                    raise _Wrong(f"it writes input {index}, which the task does not", values, line)
            else:
                wrong = difference([mine], [theirs], [None], tolerance, reduced=reduced)
                if wrong is not None:
                    says = wrong.says.replace(
                        "the result", f"input {index}, which the task writes,"
                    )
                    raise _Wrong(says, values, line, self._trick_of(evidence, expected))
        shared = shared_memory(record)
        if (shared == "an input" and not expected.in_inputs) or (
            shared == "another result" and not expected.is_shared
        ):
            raise _Wrong(
                f"a result lies in the memory of {shared}, so that who writes one changes the "
                "other; the reference returns memory of its own",
                values, line,
            )  # fmt: skip

    def _trick_of(self, evidence: Evidence, expected: Expected) -> str:
        """Return which trick a wrong result is of, empty for a mistake."""
        if evidence.from_before:
            return (
                "it returns memory that nothing in this call writes: what an earlier call, or the "
                "host, left there"
            )
        if not evidence.depends_on_inputs and expected.plain:
            return "its result does not depend on its inputs"
        if evidence.depends_on_host * 2 >= sum(item.nbytes for item in expected.plain) > 0:
            return (
                f"its result is made of {evidence.depends_on_host:,} bytes of the host's, which no "
                "recorded work computes"
            )
        return ""

    def _look_at(self, evidence: Evidence, problem: TaskProblem | None) -> None:
        """Note what a record shows although its results are right."""
        tricks = []
        if evidence.narrowed and problem is not None and not self._narrows(problem):
            tricks.append(f"it computes in fewer bits than the task's float32: {evidence.narrowed}")
        if self._scan.kernels and evidence.library and not evidence.own_kernels:
            tricks.append(
                "its result comes from PyTorch's operations alone "
                f"({', '.join(sorted(evidence.library)[:3])}), not from the kernels that it defines"
            )
        self._tricks += [trick for trick in tricks if trick not in self._tricks]
        if evidence.reduced:
            self._remarks.append("products of float32 are of TF32, as Triton's tl.dot has it")

    def _narrows(self, problem: TaskProblem) -> bool:
        """Return whether the reference itself computes in fewer bits."""
        tensors = [tensor.clone() for tensor in tensors_of(problem.inputs)]
        return bool(evidence_of(_recorded(problem, tensors)).narrowed)

    # Time

    def _judge_times(self, task: JudgedTask, size: TaskSize) -> None:
        for machine in self._request.machines:
            candidate = self._process(task, machine, data=False)
            try:
                messages = on_ranks(
                    lambda _, rank: _message(self._hollow(task, size, rank), has_data=False),
                    machine, task.ranks, data=False,
                )  # fmt: skip
                records = candidate.call(*messages)
                work = partial(self._time, task, size, records)
                timed = on_ranks(work, machine, task.ranks, data=False)
                # All wait for the slowest.
                mine, eager, compiled = (
                    max(pair, key=lambda e: e.time_ns if e else 0.0)
                    for pair in zip(*timed, strict=True)
                )
                floor = in_simulation(partial(floor_ns, record=records[0]), machine, data=False)
                self._times.append(
                    machine_time(machine, size, mine, eager, compiled and compiled.time_ns, floor)
                )
            except (NoDataError, CandidateFailed) as error:
                self._remarks.append(f"{machine}: its time cannot be said: {error}")
            finally:
                candidate.close()

    def _check_timed(self, size: TaskSize, record: Record) -> None:
        """Hold a record to be timed to the work that was executed with values.

        Raises:
            _UnknownError: It has work that no executed size has.
        """
        if not self._work_of:
            return
        work, done = work_of(record), self._work_of.get(size.label)
        if done is not None and work != done:
            which = ", ".join(sorted(work ^ done)[:3])
            self._tricks.append(
                f"at size {size.label} it launches other work when it is timed ({which})"
            )
        elif new := sorted(work - set().union(*self._work_of.values())):
            raise _UnknownError(
                f"at size {size.label}, which is timed, it launches {', '.join(new[:3])}, which no "
                "size does that is small enough to be executed with values"
            )

    def _hollow(self, task: JudgedTask, size: TaskSize, rank: int) -> TaskProblem:
        # Without data, memory of a device is no memory here.
        with torch.device("cuda"):
            return task.build(size, self._seed, rank)

    def _time(
        self,
        task: JudgedTask,
        size: TaskSize,
        records: list[Record],
        context: RuntimeContext,
        rank: int,
    ) -> tuple[TimedRecord, TimedRecord, TimedRecord | None]:
        """Return a rank's times of the candidate, of eager, and of what is compiled."""
        problem, record = self._hollow(task, size, rank), records[rank]
        tensors = tensors_of(problem.inputs)
        with _of_the_task(self._request.task, "its reference fails by itself"):
            done = _recorded(problem, tensors)
        eager = time_record(context, done, rank)
        self._check_timed(size, record)
        mine = time_record(context, record, rank)
        evidence, says = evidence_of(record), mine.unwritten
        if evidence.from_before or not evidence.depends_on_inputs:
            says = "its result does not depend on its inputs"
        if says and evidence_of(done).depends_on_inputs:
            self._tricks.append(f"at size {size.label}, which is timed, {says}")
        if self._lines and size.label not in self._work_of:
            new = sorted(mine.lines - self._lines)
            if new:
                raise _UnknownError(
                    f"at size {size.label}, which is timed, it executes {', '.join(new[:3])}, "
                    "which no size does that is small enough to be executed with values"
                )
        compiled = None
        if self._request.compiled:
            torch._dynamo.reset()
            fast = torch.compile(problem.reference)
            for _ in range(2):
                done = _recorded(TaskProblem(fast, problem.inputs), tensors)
            compiled = time_record(context, done, rank)
        return mine, eager, compiled


def _refuse_lazy(record: Record) -> None:
    """Refuse what a candidate returns in place of tensors.

    Raises:
        _Wrong: It returns such a thing.
    """
    lazy = [remark for remark in record.remarks if remark.startswith("it returns")]
    if lazy:
        raise _Wrong(lazy[0], DRAWN, trick=lazy[0])


def _recorded(problem: TaskProblem, tensors: list[Tensor]) -> Record:
    """Return the record of a reference."""
    recorder = CallRecorder(tensors, has_data=False)
    with torch.no_grad(), recorder.recording():
        results = problem.reference(*with_tensors(problem.inputs, tensors))
    return recorder.finish(results)


def _built_message(
    task: JudgedTask, size: TaskSize, seed: int, context: RuntimeContext, rank: int
) -> dict[str, Any]:
    return _message(task.build(size, seed, rank))


def _message(problem: TaskProblem, *, has_data: bool = True) -> dict[str, Any]:
    """Return what a candidate's process is told of a problem: on the host, by value."""
    value = tensors_of(problem.inputs)
    tensors: list[Any]
    if has_data:
        tensors = [on_host(item) for item in value]
        state = (
            {n: t.cpu() for n, t in problem.module.state_dict().items()} if problem.module else {}
        )
    else:
        tensors, state = [Hollow(item) for item in value], {}
    # A first call has other numbers in the same memory; what integers mean, only the task knows.
    decoys = [e.flip(0) if e.is_floating_point() and e.dim() else e for e in tensors if has_data]
    return {
        "inputs": with_tensors(problem.inputs, tensors),
        "decoys": decoys,
        "init": problem.init,
        "state": state,
    }
