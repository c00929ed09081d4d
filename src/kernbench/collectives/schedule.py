"""What a collective does, before anything moves: steps of chunk transfers between ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernbench.errors import InternalError

Index = npt.NDArray[np.int32]
Bounds = npt.NDArray[np.int64]
ScheduleKey = tuple[str, str, int, int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Transfers that may happen at the same time: rank ``src[i]`` sends ``chunk[i]`` to ``dst[i]``.

    Ranks are positions in the group. With ``reduce`` the receiver combines the chunk with its own
    copy (received operand first), else it replaces it. A rank sends at most one chunk and receives
    at most one. It sends in step ``s`` only after its own receives of earlier steps have ended,
    and after its own sends of earlier steps left.
    """

    src: Index
    dst: Index
    chunk: Index
    reduce: bool

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """A collective on a work buffer that every rank of the group has one of.

    The work buffer is ``num_elements`` long and cut into chunks at ``chunk_bounds``; chunks may be
    uneven or empty. What goes in and out of it is the op's business:

    - all_reduce: the tensor itself;
    - all_gather: the output; before the first step each rank's own chunk holds its input;
    - reduce_scatter: a copy of the input; after the last step each rank keeps its own chunk (what
      the other chunks then hold is not defined);
    - broadcast: the tensor itself, ``root`` holds it before the first step;
    - send_recv: the tensor itself, of two ranks of which ``root`` is the sender;
    - barrier: nothing (zero elements).

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

    @property
    def num_chunks(self) -> int:
        return len(self.chunk_bounds) - 1

    @property
    def size_bytes(self) -> int:
        """Size of the work buffer: the message size as nccl-tests counts it for every op."""
        return self.num_elements * self.itemsize

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
        )

    def chunk_bytes(self) -> Bounds:
        """Return the size of every chunk in bytes."""
        return np.diff(self.chunk_bounds) * self.itemsize

    def sent_bytes(self) -> Bounds:
        """Return how many bytes each rank sends."""
        sent = np.zeros(self.num_ranks, dtype=np.int64)
        sizes = self.chunk_bytes()
        for step in self.steps:
            sent[step.src] += sizes[step.chunk]
        return sent

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
        lines = [
            f"{self.op} by {self.algorithm}: {self.num_ranks} ranks, {self.num_elements} elements "
            f"of {self.itemsize} bytes in chunks of {shown}, {len(self.steps)} steps"
        ]
        for number, step in enumerate(self.steps[:max_steps]):
            moves = ", ".join(
                f"{src}->{dst} chunk {chunk}"
                for src, dst, chunk in zip(step.src, step.dst, step.chunk, strict=True)
            )
            lines.append(f"step {number}  {'reduce' if step.reduce else 'copy  '}  {moves}")
        if len(self.steps) > max_steps:
            lines.append(f"... and {len(self.steps) - max_steps} more steps")
        return "\n".join(lines)

    def check(self) -> None:
        """Hold the plan to its own rules.

        Raises:
            InternalError: A step names a rank or chunk that is not there, sends to itself, or lets
                a rank send or receive twice.
        """
        bounds = self.chunk_bounds
        if bounds[0] != 0 or bounds[-1] != self.num_elements or np.any(np.diff(bounds) < 0):
            raise InternalError(f"chunk bounds {bounds} do not cut {self.num_elements} elements")
        for number, step in enumerate(self.steps):
            for what, index, limit in (
                ("source", step.src, self.num_ranks),
                ("target", step.dst, self.num_ranks),
                ("chunk", step.chunk, self.num_chunks),
            ):
                if len(index) != len(step) or np.any((index < 0) | (index >= limit)):
                    raise InternalError(f"step {number} has a {what} outside 0..{limit - 1}")
            if np.any(step.src == step.dst):
                raise InternalError(f"step {number} sends from a rank to itself")
            if len(set(step.src.tolist())) < len(step) or len(set(step.dst.tolist())) < len(step):
                raise InternalError(f"step {number} lets a rank send or receive twice")
