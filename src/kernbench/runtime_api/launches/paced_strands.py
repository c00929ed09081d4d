"""Programs of a paced launch that run in lockstep, and what their commands do to data."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kernbench.clock import Task
from kernbench.commands import Command
from kernbench.interleaved import InterleavedLaunch, Span, Strand, capture, spans_of
from kernbench.kernel_time import TimedStrand
from kernbench.runtime_api.base.replay_queue import ReplayQueue

_MOST_NAMED = 4

Commands = tuple["Command", ...]
Steps = Generator[int | None, None, None]
"""What a strand does; yields the times at which it resumes, or None until it is woken."""


class Data(Protocol):
    """What the commands of a strand do to data."""

    @property
    def num_slots(self) -> int:
        """The number of slots that its commands use."""

    def spans(self, part: Commands) -> Sequence[Span]:
        """Return the bytes that a part may touch."""

    def perform(self, part: Commands) -> None:
        """Execute a part now."""

    def capture(self, part: Commands) -> Callable[[], None]:
        """Return what executes a part later, on the current values."""


class StrandData:
    """Executes commands on data as time passes, after what completed before them."""

    def __init__(self, strand: Strand, replay_queue: ReplayQueue) -> None:
        self.strand = strand
        self._replay_queue = replay_queue

    @property
    def num_slots(self) -> int:
        return self.strand.num_slots

    def spans(self, part: Commands) -> Sequence[Span]:
        return spans_of(self.strand, part)

    def perform(self, part: Commands) -> None:
        self._replay_queue.drain()
        self.strand.perform(part)

    def capture(self, part: Commands) -> Callable[[], None]:
        effect = capture(self.strand, part, later=True)

        def run() -> None:
            self._replay_queue.drain()
            effect()

        return run


class NoData:
    """Commands that only take time: there is no data, or it is computed when it is read."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots

    def spans(self, part: Commands) -> Sequence[Span]:
        return ()

    def perform(self, part: Commands) -> None:
        """Nothing."""

    def capture(self, part: Commands) -> Callable[[], None]:
        return lambda: None


@dataclass(slots=True, eq=False)
class PacedStrand:
    """Programs that run in lockstep, and their writes that are not visible yet."""

    timed: TimedStrand
    data: Data
    strand: Strand | None = None
    sent: list[tuple[Span, int]] = field(default_factory=list)
    """What they wrote, and when it becomes visible."""
    is_waiting: bool = False
    deadline_ps: int | None = None
    """When its wait times out, if it has a timeout."""
    task: Task | None = None


def waits_of(strands: Sequence[PacedStrand], live: InterleavedLaunch) -> str:
    """Return what errors say about waiting strands: which programs, where, and for what."""
    texts = []
    for paced in strands[:_MOST_NAMED]:
        assert paced.strand is not None
        ids = paced.timed.program_ids.tolist()
        named = ", ".join(str(live.coordinates(item)) for item in ids[:_MOST_NAMED])
        more = f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else ""
        tensors = dict.fromkeys(watched.span.buffer.label for watched in paced.strand.watched)
        of = f" of {', '.join(tensors)}" if tensors else ""
        texts.append(
            f"{'program' if len(ids) == 1 else 'programs'} {named}{more} at "
            f"{paced.strand.loop_line} for a change{of}"
        )
    rest = sum(len(paced.timed.program_ids) for paced in strands[_MOST_NAMED:])
    if rest:
        texts.append(f"{rest} more programs")
    return "; ".join(texts)
