"""What a strand did, as commands for the scheduler: equal iterations become one loop.

A strand records while it runs, and is split while it runs. An entry therefore keeps the programs
that it was recorded for; what it means for those that are left is computed at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kernbench.commands import (
    Atomic,
    Command,
    DmaRead,
    DmaWrite,
    Gemm,
    Loop,
    Math,
    Predicate,
    ProgramGroup,
    SourceLine,
    access_of,
)
from kernbench.dtypes import Array
from kernbench.interleaved.values import of_programs
from kernbench.replay import Joining, NotAlikeError, outline


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """Commands that ran together; those after ``decisive`` ones start once these have ended."""

    program_ids: Array
    commands: tuple[Command, ...]
    decisive: bool


@dataclass(frozen=True, slots=True, eq=False)
class Repeated:
    """A loop that ran iteration by iteration, as runs of equal iterations."""

    line: SourceLine
    runs: tuple[tuple[int, tuple[Node, ...]], ...]


Node = Entry | Repeated


@dataclass(slots=True)
class _Scope:
    line: SourceLine
    runs: list[tuple[int, tuple[Node, ...]]] = field(default_factory=list)
    marks: tuple[Any, ...] | None = None
    """The key of the iterations of the last run."""
    nodes: list[Node] = field(default_factory=list)
    """The iteration that is being recorded."""

    def next_iteration(self) -> None:
        nodes = tuple(self.nodes)
        marks = tuple(_mark(node) for node in nodes)
        if self.runs and marks == self.marks:
            count, first = self.runs[-1]
            self.runs[-1] = (count + 1, first)
        else:
            self.runs.append((1, nodes))
            self.marks = marks
        self.nodes = []


class Recording:
    """The record of one strand."""

    def __init__(self, line: SourceLine) -> None:
        self._scopes = [_Scope(line)]

    def copy(self) -> Recording:
        """Return the record of a part of the strand, up to now."""
        other = Recording.__new__(Recording)
        other._scopes = [
            replace(scope, runs=list(scope.runs), nodes=list(scope.nodes)) for scope in self._scopes
        ]
        return other

    def add(self, program_ids: Array, commands: tuple[Command, ...], decisive: bool) -> None:
        self._scopes[-1].nodes.append(Entry(program_ids, commands, decisive))

    def enter_loop(self, line: SourceLine) -> None:
        self._scopes.append(_Scope(line))

    def next_iteration(self) -> None:
        self._scopes[-1].next_iteration()

    def leave_loop(self) -> None:
        """End the innermost loop; what was recorded since its last iteration is one more."""
        scope = self._scopes.pop()
        if scope.nodes:
            scope.next_iteration()
        self._scopes[-1].nodes.append(Repeated(scope.line, tuple(scope.runs)))

    def body(self, program_ids: Array, first_loop_id: int) -> tuple[Command, ...]:
        """Return everything as commands of the programs that are left."""
        while len(self._scopes) > 1:
            self.leave_loop()
        builder = _CommandBuilder(program_ids, first_loop_id)
        return builder.commands(tuple(self._scopes[0].nodes), self._scopes[0].line)


@dataclass(slots=True)
class _CommandBuilder:
    program_ids: Array
    next_loop_id: int

    def commands(self, nodes: tuple[Node, ...], line: SourceLine) -> tuple[Command, ...]:
        dma_reads: list[Command] = []
        for node in nodes:
            if isinstance(node, Repeated):
                for count, iteration in node.runs:
                    body = self.commands(iteration, node.line)
                    if body:
                        dma_reads.append(self._loop(count, body, node.line))
                continue
            commands = node.commands
            if len(node.program_ids) != len(self.program_ids):
                positions = np.searchsorted(node.program_ids, self.program_ids)
                commands = of_programs(commands, positions)
            if node.decisive:
                dma_reads.append(self._loop(1, commands, commands[0].line))
            else:
                dma_reads += commands
        return tuple(dma_reads)

    def _loop(self, count: int, body: tuple[Command, ...], line: SourceLine) -> Loop:
        self.next_loop_id += 1
        return Loop(self.next_loop_id - 1, count, body, (), 1, line)


def _mark(node: Node) -> Any:
    if isinstance(node, Repeated):
        return (node.line, tuple((n, tuple(map(_mark, body))) for n, body in node.runs))
    return (node.decisive, tuple(map(look, node.commands)))


def look(command: Command, whole: bool = False) -> Any:
    """Return a key that is equal for commands that cost the same.

    Where the ``whole`` is compared, loops must have the same number as well.
    """
    if isinstance(command, DmaRead | DmaWrite | Atomic):
        access = access_of(command)
        what: Any = (access.param, access.shape, access.dtype.name, access.gather is None)
        return (type(command), command.line, what, _mask_look(command.mask))
    if isinstance(command, Gemm):
        return (type(command), command.line, command.a.shape, command.b.shape)
    if isinstance(command, Math):
        return (command.op, command.line, command.dst.shape, command.dst.dtype.name)
    if isinstance(command, Loop):
        number = command.loop_id if whole else -1
        body = tuple(look(dma_read, whole) for dma_read in command.body)
        return (number, command.line, command.trip_count, body)
    return (type(command), command.line)


def _mask_look(mask: Any) -> Any:
    if not isinstance(mask, Predicate):
        return None
    return tuple(sorted((dims, array.tobytes()) for dims, array in mask.terms.items()))


def merge_groups(groups: Sequence[ProgramGroup]) -> tuple[ProgramGroup, ...]:
    """Return the groups, those whose commands look alike as one, by their lowest program."""
    alike: dict[Any, list[ProgramGroup]] = {}
    for group in groups:
        key = tuple(look(command, whole=True) for command in group.body)
        alike.setdefault(key, []).append(group)
    merged = [group for same in alike.values() for group in _merged(same)]
    merged.sort(key=lambda group: int(group.program_ids[0]))
    return tuple(merged)


def _merged(groups: list[ProgramGroup]) -> list[ProgramGroup]:
    """Return groups that look alike as one, or as few as can be joined."""
    if len(groups) == 1:
        return groups
    try:
        return [_joined(groups)]
    except NotAlikeError:
        # Seldom: what is data in one group was decided in another.
        apart: dict[Any, list[ProgramGroup]] = {}
        for group in groups:
            apart.setdefault(outline(group.body), []).append(group)
        return [_joined(program_groups) for program_groups in apart.values()]


def _joined(groups: list[ProgramGroup]) -> ProgramGroup:
    ids = np.concatenate([group.program_ids for group in groups])
    joining = Joining([len(group.program_ids) for group in groups], np.argsort(ids))
    return ProgramGroup(np.sort(ids), joining.values([group.body for group in groups]))
