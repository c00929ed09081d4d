"""Holding a record to what is expected: it is executed, and what is wrong of it is an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernbench.errors import KernbenchError, UnsupportedOpError
from kernbench.judging.comparing import Expected, difference, form_of, is_same, ordered_tensors
from kernbench.judging.evidence import Evidence, evidence_of, shared_memory
from kernbench.judging.executing import Executor, parts_of, poison_of
from kernbench.judging.record import Record, RecordError, line_in, store_line
from kernbench.judging.recording import LAZY
from kernbench.judging.tasks import tensors_of, with_tensors
from kernbench.judging.values import DRAWN

OWN_CHECK = "its results are as close as the task's own check asks, not as rounding leaves them"
Tolerance = tuple[float, float] | None
_UNORDERED = frozenset(
    (
        "scatter_add", "scatter_add_", "index_add", "index_add_", "bincount", "histc",
        "scatter_reduce", "put_", "_index_put_impl_", "embedding_dense_backward",
    )
)  # fmt: skip
"""PyTorch's operations that a GPU executes by atomics. Source: the page of
``torch.use_deterministic_algorithms``."""


@dataclass
class WrongCase(Exception):  # noqa: N818 - no error of anyone's program
    """A case whose record is wrong: what is said of it, and whose line it is."""

    says: str
    values: str
    line: str = ""
    trick: str = ""
    writer: str = ""


def hold(
    record: Record, values: str, tensors: Sequence[Tensor], expected: Expected, tolerance: Tolerance
) -> tuple[Executor, list[str]]:
    """Execute a record on inputs and hold it to what is expected; return what was seen of it.

    ``values``: what the inputs are filled with. Returns the execution, and remarks.

    Raises:
        WrongCase: It is not that.
        RecordError: It cannot be executed.
        UnsupportedOpError: It needs what is not simulated.
    """
    try:
        executor = Executor(record, tensors)
        done = executor.run()
        written = executor.put_back()
        left = [item.cpu() if at in written else item for at, item in enumerate(done.inputs)]
        results = [tensor.cpu() for tensor in ordered_tensors(done.results)]
    except (RecordError, UnsupportedOpError):
        raise
    except KernbenchError as error:
        says = str(error).partition("\n")[0]
        raise WrongCase(f"{type(error).__name__}: {says}", values, line_in(says)) from None
    evidence = evidence_of(record, executor.writes)
    line = ""
    if evidence.last_kernel is not None:
        line = store_line(record.kernels[evidence.last_kernel]["ttir"])
    # What the host has read may be in its numbers: they are of the values that it was run with.
    has_numbers = not record.host_reads
    form, asked = form_of(done.results, has_numbers=has_numbers), expected.forms[has_numbers]
    reduced, remarks = evidence.reduced, []
    wrong = difference(results, expected.plain, expected.exact, tolerance, reduced=reduced)
    is_off = wrong is not None or form != asked
    if (is_off or evidence.narrowed) and expected.accepts(done.results):
        remarks.append(OWN_CHECK)
    elif form != asked:
        raise WrongCase(f"it returns {form}, the reference {asked}", values, line)
    elif wrong is not None:
        writer = executor.writer_of(wrong) if line else ""
        trick = _trick_of(evidence, expected)
        raise WrongCase(wrong.says, values, line_in(writer) or line, trick, writer)
    for index, (mine, before) in enumerate(zip(left, tensors, strict=True)):
        says, is_asked = _wrong_input(index, mine, before, expected, tolerance, reduced=reduced)
        if says:
            trick = _trick_of(evidence, expected) if is_asked else ""
            raise WrongCase(says, values, line, trick)
        if index in written and not is_asked:
            remarks.append(f"it writes input {index} and leaves there what was there before")
    shared = shared_memory(record, expected.room)
    if (shared == "an input" and not expected.in_inputs) or (
        shared == "another result" and not expected.is_shared
    ):
        raise WrongCase(
            f"a result lies in the memory of {shared}, so that who writes one changes the "
            "other; the reference returns memory of its own",
            values, line,
        )  # fmt: skip
    return executor, remarks


def _wrong_input(
    index: int,
    mine: Tensor,
    before: Tensor,
    expected: Expected,
    tolerance: Tolerance,
    *,
    reduced: bool,
) -> tuple[str, bool]:
    """Return what is wrong of what is left of an input, and whether the task writes it."""
    theirs = expected.inputs[index]
    if index in expected.room:
        return "", True
    if is_same(theirs, before):
        is_kept = is_same(mine, theirs)
        return "" if is_kept else f"it writes input {index}, which the task does not", False
    wrong = difference([mine], [theirs], [None], tolerance, reduced=reduced)
    says = wrong.says if wrong is not None else ""
    return says.replace("the result", f"input {index}, which the task writes,"), True


def hold_in_part(
    record: Record,
    values: str,
    tensors: Sequence[Tensor],
    expected: Expected,
    tolerance: Tolerance,
    seed: int,
) -> None:
    """Execute a part of a record's programs, which ``seed`` draws, and hold to what they write.

    Raises:
        WrongCase: It is not what is expected.
        RecordError: It cannot be executed in part.
    """
    left = [
        torch.full((tensor.nbytes,), poison_of(seed), dtype=torch.uint8, device=tensor.device)
        .view(tensor.dtype)
        .view(tensor.shape)
        if index in expected.room
        else tensor
        for index, tensor in enumerate(tensors)
    ]
    executor = Executor(record, left, seed=seed)
    returned = executor.run().results
    results = [tensor.cpu() for tensor in ordered_tensors(returned)]
    for index, (mine, theirs) in enumerate(zip(results, expected.plain, strict=False)):
        if mine.shape == theirs.shape:
            parts = mine.contiguous().unsqueeze(-1).view(torch.uint8)
            is_left = (parts == executor.poison).all(-1)
            results[index] = torch.where(is_left, theirs.to(mine.dtype), mine)
    reduced = evidence_of(record, executor.writes).reduced
    wrong = difference(results, expected.plain, expected.exact, tolerance, reduced=reduced)
    on_host = {id(own): e for own, e in zip(ordered_tensors(returned), results, strict=True)}
    whole = with_tensors(returned, [on_host[id(own)].cuda() for own in tensors_of(returned)])
    if wrong is not None and not expected.accepts(whole):
        raise WrongCase(f"in a part of its programs {wrong.says}", values)


def _trick_of(evidence: Evidence, expected: Expected) -> str:
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


def in_another_order(record: Record, tensors: Sequence[Tensor], tolerance: Tolerance) -> list[str]:
    """Execute a record twice, the second time in another order, where that may matter.

    Programs that do not race and share no atomics cannot tell their order. Returns remarks.

    Raises:
        WrongCase: In another order its results are wrong.
    """
    atomics = any("tt.atomic" in kernel["ttir"] for kernel in record.kernels)
    unordered = sorted({parts_of(step.get("op", ""))[1] for step in record.steps} & _UNORDERED)
    remarks = []
    if unordered:
        names = ", ".join(unordered)
        remarks.append(f"{names} adds in an order that a GPU does not fix: bits may differ")
    if not atomics and not any("draws random numbers" in remark for remark in record.remarks):
        return remarks
    try:
        runs = [Executor(record, tensors, backwards=way) for way in (False, True)]
        first, second = ([e.cpu() for e in tensors_of(run.run().results)] for run in runs)
    except RecordError:
        raise
    except KernbenchError as error:
        says = str(error).partition("\n")[0]
        return [*remarks, f"it depends on the order in which its programs begin: {says}"]
    if all(map(is_same, first, second)):
        return remarks
    reduced = evidence_of(record, runs[0].writes).reduced
    exact = [None] * len(first)
    wrong = difference(second, first, exact, tolerance, reduced=reduced)
    if wrong is not None:
        raise WrongCase(f"in another order of its programs {wrong.says}", DRAWN)
    return [
        *remarks,
        "non-deterministic: in another order of its programs results differ within rounding",
    ]


def refuse_lazy(record: Record) -> None:
    """Refuse what a candidate returns in place of tensors.

    Raises:
        WrongCase: It returns such a thing.
    """
    for remark in record.remarks:
        if remark.startswith("it returns"):
            raise WrongCase(remark, DRAWN, trick=remark if remark.endswith(LAZY) else "")
