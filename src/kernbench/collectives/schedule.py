"""The plan of a collective: steps of chunk transfers between ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kernbench.errors import InternalError

Index = npt.NDArray[np.int32]
Bounds = npt.NDArray[np.int64]
Counts = tuple[int, ...]
ScheduleKey = tuple[str, str, int, int, int, int, Counts, int]
Part = Literal["whole", "up", "down", "turn"]
"""Which part of a route a transfer takes where the switch itself adds and copies: only up to the
switch (it adds), only down from it (it has copied), or up and back to the sender."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Transfers that may happen at the same time: rank ``src[i]`` sends ``chunk[i]`` to ``dst[i]``.

    Ranks are positions in the group. With ``reduce`` the receiver combines the chunk with its own
    copy (received operand first), else it replaces it. A rank sends at most one chunk and receives
    at most one. It sends in step ``s`` only after its own receives of earlier steps have ended,
    and after its own sends of earlier steps left. A step that is ``concurrent`` joins the step
    before it in one round: it waits for what that one waits for, and for nothing of the round.
    One that is also ``behind`` is served by the links after the steps before it, as what was
    asked for later; else the steps of a round come as they arrive.
    """

    src: Index
    dst: Index
    chunk: Index
    reduce: bool
    span: int = 1
    """How many chunks travel as one, from ``chunk[i]`` on."""
    concurrent: bool = False
    part: Part = "whole"
    behind: bool = False

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """A collective on a work buffer, of which every rank of the group has one.

    The work buffer is ``num_elements`` long and cut into chunks at ``chunk_bounds``; chunks may be
    uneven or empty. What goes in and out of it is the op's business:

    - all_reduce: the tensor itself;
    - all_gather: the output; before the first step each rank's own chunk holds its input;
    - reduce_scatter: a copy of the input; after the last step each rank keeps its own chunk (what
      the other chunks then hold is not defined);
    - broadcast: the tensor itself, ``root`` holds it before the first step;
    - reduce: the tensor itself; after the last step ``root`` has the result, of the others nothing
      is defined;
    - gather, scatter: the output of ``root``, or its input; chunk ``r`` is rank ``r``'s;
    - all_to_all: a chunk ``s * n + d`` for what rank ``s`` gives to rank ``d``, for all pairs; a
      rank's own row is its input, its own column its output;
    - send_recv: the tensor itself, of two ranks of which ``root`` is the sender;
    - barrier: nothing (zero elements).

    With ``fold`` (a one_shot all_reduce) it has a slot as long as the tensor for every rank, and
    chunk ``r`` is rank ``r``'s contribution; after the last step every rank combines the slots in
    the order of the ranks.

    :func:`kernbench.collectives.build` makes one. Steps share their arrays; never write to them.
    """

    op: str
    algorithm: str
    num_ranks: int
    num_elements: int
    itemsize: int
    chunk_bounds: Bounds
    steps: tuple[Step, ...]
    root: int = 0
    counts: Counts = ()
    """all_to_all of uneven parts: elements from rank s to rank d at ``s * n + d``; else empty."""
    ranks_per_node: int = 0
    """What a hierarchical algorithm was told; 0 elsewhere."""
    fold: bool = False
    striped: bool = False
    """Whether a collective library cuts each chunk into as many channels as links leave a node."""
    pipelined: bool = False
    """Whether ranks hand pieces of a chunk on before they have all of it."""

    @property
    def num_chunks(self) -> int:
        return len(self.chunk_bounds) - 1

    @property
    def size_bytes(self) -> int:
        """The message size as nccl-tests counts it for every op; of one rank for all_to_all."""
        return self.num_elements * self.itemsize

    @property
    def work_elements(self) -> int:
        """Length of the work buffer."""
        return int(self.chunk_bounds[-1])

    @property
    def key(self) -> ScheduleKey:
        """What :func:`kernbench.collectives.build` was asked for: equal keys, equal plans."""
        return (
            self.op,
            self.algorithm,
            self.num_ranks,
            self.num_elements,
            self.itemsize,
            self.root,
            self.counts,
            self.ranks_per_node,
        )

    def chunk_bytes(self) -> Bounds:
        """Return the size of every chunk in bytes."""
        return self.span_bytes(1)

    def span_bytes(self, span: int) -> Bounds:
        """Return the size in bytes of ``span`` chunks, by the first of them."""
        return (self.chunk_bounds[span:] - self.chunk_bounds[:-span]) * self.itemsize

    def sent_bytes(self) -> Bounds:
        """Return how many bytes each rank sends."""
        sent = np.zeros(self.num_ranks, dtype=np.int64)
        for step in self.steps:
            if step.part != "down":
                sent[step.src] += self.step_bytes(step)
        return sent

    def step_bytes(self, step: Step) -> Bounds:
        """Return the size of every transfer of a step."""
        bounds = self.chunk_bounds
        sizes: Bounds = (bounds[step.chunk + step.span] - bounds[step.chunk]) * self.itemsize
        return sizes

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def describe(self, max_steps: int = 32) -> str:
        """Return the plan as text, a line per step.

        >>> from kernbench.collectives import build
        >>> print(build("all_reduce", "ring", 3, 4, 4).describe())
        all_reduce by ring: 3 ranks, 4 elements of 4 bytes in chunks of 2 1 1, 4 steps
        step 0  reduce  0->1 chunk 2, 1->2 chunk 0, 2->0 chunk 1
        step 1  reduce  0->1 chunk 1, 1->2 chunk 2, 2->0 chunk 0
        step 2  copy    0->1 chunk 0, 1->2 chunk 1, 2->0 chunk 2
        step 3  copy    0->1 chunk 2, 1->2 chunk 0, 2->0 chunk 1
        """
        sizes = np.diff(self.chunk_bounds).tolist()
        shown = " ".join(map(str, sizes)) if len(sizes) <= 16 else f"{min(sizes)} to {max(sizes)}"
        if len(sizes) > 4 and min(sizes) == max(sizes):
            shown = f"{len(sizes)} x {sizes[0]}"
        lines = [
            f"{self.op} by {self.algorithm}: {self.num_ranks} ranks, {self.num_elements} elements "
            f"of {self.itemsize} bytes in chunks of {shown}, "
            f"{len(self.steps)} step{'s' if len(self.steps) != 1 else ''}"
        ]
        for number, step in enumerate(self.steps[:max_steps]):
            last = step.span - 1
            moves = ", ".join(
                f"{src}->{dst} chunk {chunk}" + (f" to {chunk + last}" if last else "")
                for src, dst, chunk in zip(step.src, step.dst, step.chunk, strict=True)
            )
            where = "" if step.part == "whole" else f"  {_PARTS[step.part]}"
            sign = ">" if step.behind else "+" if step.concurrent else " "
            lines.append(
                f"step {number} {sign}{'reduce' if step.reduce else 'copy  '}  {moves}{where}"
            )
        if len(self.steps) > max_steps:
            lines.append(f"... and {len(self.steps) - max_steps} more steps")
        elif self.fold:
            lines.append("then every rank combines the chunks in order")
        return "\n".join(lines)

    def check(self) -> None:
        """Check the plan against its own rules.

        Raises:
            InternalError: A step names a rank or chunk that is not there, sends to itself, lets
                a rank send or receive twice, or sends what its own round has just received.
        """
        bounds = self.chunk_bounds
        length = self.num_elements
        if self.fold:
            length *= self.num_ranks
        elif self.op == "all_to_all":
            length = sum(self.counts) if self.counts else length * self.num_ranks
        if bounds[0] != 0 or bounds[-1] != length or np.any(np.diff(bounds) < 0):
            raise InternalError(f"chunk bounds {bounds} do not cut {length} elements")
        arrived: set[tuple[int, int]] = set()
        for number, step in enumerate(self.steps):
            for what, index, limit in (
                ("source", step.src, self.num_ranks),
                ("target", step.dst, self.num_ranks),
                ("chunk", step.chunk, self.num_chunks - step.span + 1),
            ):
                if len(index) != len(step) or np.any((index < 0) | (index >= limit)):
                    raise InternalError(f"step {number} has a {what} outside 0..{limit - 1}")
            if np.any(step.src == step.dst) != (step.part == "turn"):
                raise InternalError(f"step {number} sends from a rank to itself")
            if len(set(step.src.tolist())) < len(step) or len(set(step.dst.tolist())) < len(step):
                raise InternalError(f"step {number} lets a rank send or receive twice")
            if not step.concurrent:
                arrived.clear()
            spans = range(step.span)
            sent = {
                (s, c + i)
                for s, c in zip(step.src.tolist(), step.chunk.tolist(), strict=True)
                for i in spans
            }
            if step.part in ("whole", "up") and sent & arrived:
                raise InternalError(f"step {number} sends what its own round has received")
            arrived |= {
                (d, c + i)
                for d, c in zip(step.dst.tolist(), step.chunk.tolist(), strict=True)
                for i in spans
            }


_PARTS = {"up": "(into the switch)", "down": "(out of the switch)", "turn": "(through the switch)"}
