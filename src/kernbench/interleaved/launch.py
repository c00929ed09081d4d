"""A launch whose programs decide by data: strands run in turn until all have returned."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kernbench.commands import IN_FLOAT32, KernelTrace, ProgramGroup, Roundings
from kernbench.dtypes import Array
from kernbench.errors import DeadlockError
from kernbench.interleaved.execution import StrandWatch
from kernbench.interleaved.memory import LaunchMemory, Params, Resolve
from kernbench.interleaved.pacing import signalling_loops, waits
from kernbench.interleaved.recording import merge_groups
from kernbench.interleaved.strand import Strand
from kernbench.kernel_ir import Block, Module, Op, Region, SplitPrograms, Value, tcm_use
from kernbench.replay import GroupPlan, OutsideReads, PointerArg, show_printed


class Liveness:
    """Last uses inside of blocks, so that a strand keeps no dead values; once per block."""

    def __init__(self, module: Module) -> None:
        self._uses = Counter(module.reads())
        self._known: dict[Block, dict[Value, int]] = {}

    def last_uses(self, block: Block) -> dict[Value, int]:
        """Return, of the values that a block makes and only it reads, where it does so last.

        The place is an index of the block's operations; of a value that is never read, where it
        is made.
        """
        uses = self._known.get(block)
        if uses is None:
            uses = self._known[block] = self._find(block)
        return uses

    def _find(self, block: Block) -> dict[Value, int]:
        last = dict.fromkeys(block.args, -1)
        inside = Counter[Value]()
        for index, op in enumerate(block.ops):
            for value in op.reads():
                inside[value] += 1
                if value in last:
                    last[value] = index
            last.update(dict.fromkeys(op.results, index))
        return {value: at for value, at in last.items() if inside[value] == self._uses[value]}


class BackBranches:
    """Branches that close a loop, which the order of blocks does not say; once per launch."""

    def __init__(self) -> None:
        self._known: dict[tuple[Block, Block], bool] = {}

    def closes_loop(self, region: Region, source: Block, target: Block) -> bool:
        """Whether a branch goes to a block above it from which control comes back to it.

        Every loop has such a branch. One that only goes up leaves for a block that several places
        share, such as a kernel's return: MLIR prints it where it is first named.
        """
        loop = self._known.get((source, target))
        if loop is None:
            loop = self._known[source, target] = _closes_loop(region, source, target)
        return loop


def _closes_loop(region: Region, source: Block, target: Block) -> bool:
    labels = [block.label for block in region.blocks]
    if labels.index(target.label) > labels.index(source.label):
        return False
    seen, left = {target}, [target]
    while left:
        block = left.pop()
        if block is source:
            return True
        # The last operation of a block is its branch.
        for successor in block.ops[-1].successors if block.ops else ():
            after = region.blocks[labels.index(successor.label)]
            if after not in seen:
                seen.add(after)
                left.append(after)
    return False


_STRAND_ELEMENTS = 1 << 20
"""Elements of the largest tile, over all programs that begin as one strand."""
_TURNS_TOGETHER = 512
"""Turns of every strand after which programs begin where there is room."""
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True, eq=False)
class Executed:
    """What a launch did; its data is in memory already."""

    trace: KernelTrace
    """For the scheduler: every strand's commands, with the trip counts that it had."""
    reached: tuple[PointerArg, ...]
    """Buffers reached through pointers in memory, numbered after the kernel's parameters."""
    pointers: Mapping[int, PointerArg]
    """All reachable buffers by parameter index: its arguments, and those in ``reached``."""


class InterleavedLaunch:
    """A kernel on data whose programs yield where they wait for each other (ADR-0031).

    Args:
        module: The kernel.
        grid: Its programs.
        ints: The value of every integer parameter, by index.
        params: One per parameter: a :class:`PointerArg`, a float, or None where it is in ``ints``.
        resolve: Gives the buffer behind an address that the kernel has loaded.
        num_warps: As the launch says; only passed on to the trace.
        num_stages: As the launch says.
        roundings: What becomes of float32 operands of products.
        watch: Looks on while commands run (the sanitizer's checks), or None.
        outside: Who hears of loads outside of a tensor, which are zeros then; None: an error.
        is_paced: Whether the caller performs what strands hand out, in the order of virtual time.
        most_resident: How many programs the device holds at a time; None: all of them.
        plans: Steps of commands, of earlier launches, too.
    """

    def __init__(
        self,
        module: Module,
        grid: tuple[int, int, int],
        ints: Mapping[int, int],
        params: Params,
        resolve: Resolve,
        *,
        num_warps: int,
        num_stages: int,
        roundings: Roundings = IN_FLOAT32,
        watch: StrandWatch | None = None,
        outside: OutsideReads | None = None,
        is_paced: bool = False,
        most_resident: int | None = None,
        plans: dict[Any, GroupPlan] | None = None,
    ) -> None:
        self.module = module
        self.grid = grid
        self.ints = ints
        self.num_warps = num_warps
        self.num_stages = num_stages
        self.roundings = roundings
        self.watch = watch
        self.memory = LaunchMemory(module.kernel.name, params, resolve, outside)
        self.liveness = Liveness(module)
        self.back_branches = BackBranches()
        # Each signal of a loop has a time of its own.
        self.stepped: set[Op] = set(signalling_loops(module)) if is_paced else set()
        """Loops that cannot run as one command."""
        self.is_paced = is_paced
        self.plans = plans
        x, y, z = grid
        self._num_programs = x * y * z
        self._most_resident = self._num_programs
        if most_resident is not None and waits(module):
            # Those that never wait come one after another, however many the device holds.
            self._most_resident = most_resident
        self._num_begun = self._num_ended = 0
        self.waiting: deque[Strand] = deque()
        """Strands in the order of their turns."""
        self.ended: list[Strand] = []

    def execute(self) -> Executed:
        """Run all programs.

        Raises:
            DeadlockError: Programs wait for something that no program does.
            OutOfBoundsError: An access leaves its tensor.
            BadPointerError: A loaded pointer belongs to no tensor.
            UnsupportedOpError: The kernel has an operation that is not supported.
        """
        try:
            self._run()
        finally:
            self.show_printed()
        return Executed(self.trace(), self.memory.reached, self.memory.frame.pointers)

    def _run(self) -> None:
        """Run the strands in turn until all have ended.

        The order is fixed: by program at the start and where a strand is split, and whoever reads
        memory in a loop goes to the end of the line with every iteration. A program begins after
        one of those that the device holds has ended: some turns later, with those for which there
        is room by then, as a strand of many programs costs what one of a single program does.
        """
        waiting = self.waiting
        waiting.extend(self._next_strands())
        turns = 0
        while waiting:
            strand = waiting.popleft()
            turns += 1
            try:
                goes_on = strand.advance()
            except SplitPrograms as split:
                waiting.extendleft(reversed(strand.split(split.labels)))
                continue
            if not goes_on:
                strand.forget()
                self.ended.append(strand)
                self._num_ended += len(strand.program_ids)
            else:
                waiting.append(strand)
            is_stuck = goes_on and strand.stuck_at is not None and self.is_stuck()
            if is_stuck or turns >= _TURNS_TOGETHER * len(waiting):
                turns = 0
                num_begun = self._num_begun
                waiting.extend(self._next_strands())
                is_stuck &= num_begun == self._num_begun
            if is_stuck:
                patient = [strand for strand in waiting if strand.may_give_up]
                if not patient:
                    raise self.deadlock()
                # Nothing happens any more but that time passes.
                patient[0].gives_up = True

    def show_printed(self) -> None:
        """Flush what programs have printed since the last call, program by program."""
        show_printed(self.memory.frame)

    def is_stuck(self) -> bool:
        """Whether no strand can make progress."""
        version = self.memory.version
        return all(strand.stuck_at == version for strand in self.waiting)

    def deadlock(self) -> DeadlockError:
        """Return the error that names the waiting programs and lines."""
        by_line: dict[str, list[int]] = {}
        for strand in self.waiting:
            by_line.setdefault(str(strand.loop_line), []).extend(strand.program_ids.tolist())
        count = sum(map(len, by_line.values()))
        lines = [
            f"kernel {self.module.kernel.name} cannot end: {count} of {self._num_programs} "
            "programs wait in loops for memory that no program changes any more"
        ]
        late = 0 if self.is_paced else self._num_programs - self._num_begun
        if late:
            lines[0] += (
                f", and {late} have not begun: the device holds {self._most_resident} at a time, "
                f"and none of these leaves; to wait for all of {self._num_programs} programs, "
                f"launch at most {self._most_resident} of them, each of which does more"
            )
        for line, ids in sorted(by_line.items()):
            named = ", ".join(str(self.coordinates(i)) for i in sorted(ids)[:_MOST_NAMED])
            more = f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else ""
            lines.append(f"  at {line}: {'program' if len(ids) == 1 else 'programs'} {named}{more}")
        return DeadlockError("\n".join(lines))

    def coordinates(self, program_id: int) -> tuple[int, int, int]:
        """Return a program's coordinates in the grid."""
        x, y, _ = self.grid
        return program_id % x, program_id // x % y, program_id // (x * y)

    def trace(self) -> KernelTrace:
        """Return what all strands did."""
        kernel = self.module.kernel
        groups = [
            ProgramGroup(
                strand.program_ids, strand.recording.body(strand.program_ids, strand.num_loops)
            )
            for strand in self.ended
        ]
        tcm = tcm_use(self.module, self.num_stages)
        return KernelTrace(
            name=kernel.name,
            grid=self.grid,
            num_warps=self.num_warps,
            num_stages=self.num_stages,
            groups=merge_groups(groups),
            num_slots=1 + max((strand.num_slots for strand in self.ended), default=0),
            tcm_bytes=tcm.total_bytes,
            staged_bytes=tcm.staged_bytes,
            line=kernel.line,
            pointer_params=tuple(p.index for p in kernel.params if p.is_pointer),
        )

    def _next_strands(self) -> Iterator[Strand]:
        """Yield strands of the programs for which there is room, in the order of programs."""
        room = self._most_resident - (self._num_begun - self._num_ended)
        last = min(self._num_begun + room, self._num_programs)
        while self._num_begun < last:
            start, self._num_begun = self._num_begun, min(self._num_begun + self.most_in_step, last)
            yield self.strand(np.arange(start, self._num_begun, dtype=np.int64))

    @cached_property
    def most_in_step(self) -> int:
        """The largest number of programs that begin as one strand."""
        results = (result for op in self.module.walk() for result in op.results)
        largest = max((math.prod(value.type.shape) for value in results), default=1)
        return max(_STRAND_ELEMENTS // largest, 1)

    def strand(self, program_ids: Array) -> Strand:
        """Return programs that are about to begin."""
        strand = Strand(self, program_ids)
        strand.begin()
        return strand
