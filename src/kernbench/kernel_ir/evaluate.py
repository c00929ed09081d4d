"""TTIR on all programs of a grid at once: a module, a grid and integers become a KernelTrace.

Control flow is resolved here. A condition or a trip count that differs between programs splits
them into groups (:class:`SplitPrograms`); one that differs between iterations cuts the loop, or
unrolls it (:class:`UnrollLoops`). Both start the group again, so no state has to be undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.commands import (
    IN_FLOAT32,
    AddressOverflow,
    Alignment,
    Hint,
    KernelTrace,
    ProgramGroup,
    Roundings,
    is_loop,
)
from kernbench.errors import InternalError, UsageError
from kernbench.kernel_ir.analysis.tcm import tcm_use
from kernbench.kernel_ir.evaluation.evaluator import (
    Evaluator,
    SplitPrograms,
    TripsDiffer,
    UnrollLoops,
)
from kernbench.kernel_ir.evaluation.shared_loops import Begin, evaluate_shared, evaluate_together
from kernbench.kernel_ir.evaluation.shared_memory import SharedMemory
from kernbench.kernel_ir.ops import COSTS, HANDLERS, RULES
from kernbench.kernel_ir.ops.descriptors import DESCRIPTOR, DESCRIPTOR_MARK
from kernbench.kernel_ir.ops.diagnostics import message_of
from kernbench.kernel_ir.text.ir import Module, Op
from kernbench.kernel_ir.text.parser import parse_unverified
from kernbench.kernel_ir.text.rules import verify


def parse_module(text: str) -> Module:
    """Return the functions of a TTIR module.

    Raises:
        KernelParseError: The text is not TTIR that we can read, or an operation in it takes values
            that it cannot; names the line of the text.
    """
    module = parse_unverified(text)
    for op in module.walk():
        if op.name == "tt.print" and message_of(op) == DESCRIPTOR_MARK:
            op.name = DESCRIPTOR
    verify(module.functions, RULES)
    return module


def evaluate(
    module: Module,
    grid: tuple[int, int, int],
    ints: Mapping[int, int],
    *,
    num_warps: int,
    num_stages: int,
    roundings: Roundings = IN_FLOAT32,
) -> KernelTrace:
    """Return what a launch of the module's kernel does, for every program of ``grid``.

    ``ints`` gives the value of every integer parameter, by its index among the parameters of the
    TTIR function. Pointers stay symbolic; floating-point parameters are read at replay.
    ``roundings`` says what becomes of float32 operands of products.

    Raises:
        UnsupportedOpError: The kernel needs something that is not supported; names the operation,
            the kernel and the source line.
        NeedsDataError: What the kernel does depends on data, or on where its tensors lie.
    """
    kernel = module.kernel
    if len(grid) != 3 or any(size < 0 for size in grid):
        raise UsageError(f"the grid of {kernel.name} must be three sizes, but got {grid}")
    num_programs = grid[0] * grid[1] * grid[2]
    everyone = np.arange(num_programs, dtype=np.int64)
    rolled: dict[Op, frozenset[int]] = {}
    pending = [(everyone, rolled, False)] if num_programs else []
    groups: list[ProgramGroup] = []
    overflows: dict[tuple[Op, Op], AddressOverflow] = {}
    alignments: dict[Alignment, None] = {}
    num_slots = num_loops = 0
    while pending:
        program_ids, unrolled, may_share = pending.pop()

        def begin(
            some: npt.NDArray[np.int64],
            unrolled: Mapping[Op, frozenset[int]] = unrolled,
            counted: tuple[int, int] = (num_slots, num_loops),
        ) -> Evaluator:
            return Evaluator(
                *(module, grid, some, unrolled, num_stages, roundings, *counted),
                handlers=HANDLERS,
                costs=COSTS,
                shared=SharedMemory() if module.is_gluon else None,
            )

        try:
            run, group = _evaluate_group(begin, ints, program_ids, may_share)
        except SplitPrograms as split:
            parts = _parts(program_ids, split.labels)
            if len(parts) < 2:
                raise InternalError(
                    f"programs of {kernel.name} were split by equal labels"
                ) from split
            pending += [(part, unrolled, split.may_share) for part in parts]
        except UnrollLoops as unroll:
            pending.append((program_ids, unroll.beside(unrolled), False))
        else:
            groups.append(replace(group, hints=_hints(run, group)))
            overflows.update(run.overflows)
            alignments.update(run.alignments)
            num_slots, num_loops = run.num_slots, run.num_loops
    groups.sort(key=lambda group: int(group.program_ids[0]))
    tcm = tcm_use(module, num_stages)
    return KernelTrace(
        name=kernel.name,
        grid=grid,
        num_warps=num_warps,
        num_stages=num_stages,
        groups=tuple(groups),
        num_slots=num_slots,
        tcm_bytes=tcm.total_bytes,
        staged_bytes=tcm.staged_bytes,
        line=kernel.line,
        pointer_params=tuple(p.index for p in kernel.params if p.is_pointer),
        overflows=tuple(overflows.values()),
        alignments=tuple(alignments),
        again=lambda: (
            evaluate(
                *(module, grid, ints),
                num_warps=num_warps,
                num_stages=num_stages,
                roundings=roundings,
            ).groups
        ),
    )


def _evaluate_group(
    begin: Begin, ints: Mapping[int, int], program_ids: npt.NDArray[np.int64], may_share: bool
) -> tuple[Evaluator, ProgramGroup]:
    """Evaluate programs as one group; raises what splits them or unrolls their loops."""
    if may_share:
        shared = evaluate_together(begin, ints, program_ids)
        if shared is not None:
            return shared
    run = begin(program_ids)
    try:
        return run, ProgramGroup(program_ids, run.run(ints))
    except TripsDiffer as split:
        shared = evaluate_shared(begin, ints, program_ids, split.labels)
        if shared is None:
            raise
        return shared


def _hints(run: Evaluator, group: ProgramGroup) -> tuple[Hint, ...]:
    """Return what the kernel says of known values, those that no program has left out."""
    return tuple(
        hint
        for hint in run.hints
        if not (group.trips and hint.held is not None and any(map(is_loop, hint.held.dims)))
    )


def _parts(
    program_ids: npt.NDArray[np.int64], labels: npt.NDArray[Any]
) -> list[npt.NDArray[np.int64]]:
    """Return the programs of each label; the part with the lowest program comes last."""
    values, where = np.unique(labels, return_inverse=True)
    parts = [program_ids[where == index] for index in range(len(values))]
    return sorted(parts, key=lambda part: -int(part[0]))
