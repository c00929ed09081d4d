"""What came of each request, and of each step of the engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from kernbench.serving.engine import Output, State
from kernbench.serving.loads import ServedRequest

CLOCK_DIGITS = 9
"""Of seconds: nanoseconds, in which clocks of hosts count."""


def since(time_s: float, zero_s: float) -> float:
    """Return seconds from one reading of a clock to another, without what floats lose by the day.

    The difference is the same whatever the clock showed when it began (ADR-0284).
    """
    return round(time_s - zero_s, CLOCK_DIGITS)


@dataclass(slots=True, kw_only=True)
class RequestRow:
    """A request; times are seconds from the start of its load."""

    request: ServedRequest
    arrival_s: float
    begun_s: float | None = None
    """When the engine first scheduled it."""
    token_times_s: list[float] = field(default_factory=list)
    """When each step's tokens of it were there."""
    tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.token_times_s[0] - self.arrival_s

    @property
    def queue_s(self) -> float | None:
        """Time until the engine first scheduled it."""
        return None if self.begun_s is None else max(0.0, self.begun_s - self.arrival_s)

    @property
    def prefill_s(self) -> float | None:
        """Time from then to the first token."""
        return None if self.begun_s is None else self.ttft_s - (self.queue_s or 0.0)

    @property
    def decode_s(self) -> float:
        """Time from the first token to the last."""
        return self.token_times_s[-1] - self.token_times_s[0]

    @property
    def tpot_s(self) -> float | None:
        """Time of a token after the first; None for one token."""
        return self.decode_s / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def e2e_s(self) -> float:
        """Time from the arrival to the last token."""
        return self.token_times_s[-1] - self.arrival_s

    @property
    def gaps_s(self) -> list[float]:
        """Times between steps that made tokens of it."""
        return [after - before for before, after in pairwise(self.token_times_s)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A step of the engine; times are seconds from the start of its load."""

    begin_s: float
    end_s: float
    first_tokens: int
    """Requests that got their first token."""
    tokens: int
    running: int
    waiting: int
    kv_share: float


@dataclass(slots=True)
class Taken:
    """What a load took: all of its requests and steps."""

    rows: list[RequestRow] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)

    def note(
        self, outputs: Iterable[Output], begin_s: float, end_s: float, zero_s: float, state: State
    ) -> list[int]:
        """Note what a step made, and return the numbers of requests that it ended."""
        ended, first, tokens = [], 0, 0
        for output in outputs:
            row = self.rows[output.number]
            if output.tokens:
                first += not row.token_times_s
                row.token_times_s.append(since(end_s, zero_s))
                row.tokens += output.tokens
                tokens += output.tokens
            if output.begun_s is not None and row.begun_s is None:
                row.begun_s = since(output.begun_s, zero_s)
            row.cached_tokens = max(row.cached_tokens, output.cached_tokens)
            row.preemptions = max(row.preemptions, output.preemptions)
            if output.is_last:
                ended.append(output.number)
        self.steps.append(
            StepRow(
                begin_s=since(begin_s, zero_s),
                end_s=since(end_s, zero_s),
                first_tokens=first,
                tokens=tokens,
                running=state.running,
                waiting=state.waiting,
                kv_share=state.kv_share,
            )
        )
        return ended
