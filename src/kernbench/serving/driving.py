"""A client: sends the requests of a load to an engine, and notes when tokens come back."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any

from kernbench.errors import UsageError
from kernbench.serving.engine import ServingEngine
from kernbench.serving.loads import ServedRequest, ServingLoad
from kernbench.serving.recording import CLOCK_DIGITS, RequestRow, Taken, since

MOST_IDLE_STEPS = 10_000
"""Steps in a row that make nothing while requests are left: the engine is stuck."""


class Client:
    """The requests of a load that are still to come, and what came of the others."""

    def __init__(self, load: ServingLoad, zero_s: float, vocabulary: int, seed: int) -> None:
        self.taken = Taken()
        self._load, self._zero_s = load, zero_s
        self._vocabulary, self._seed = vocabulary, seed
        self._left = deque(load.requests)
        self._steps = 0
        self._asking: deque[tuple[int, float]] = deque([(0, zero_s)] * load.concurrency)
        """Of clients of a closed loop that wait: before which step the engine takes what they have
        sent, and when they sent it."""

    def count(self, now_s: float) -> int:
        """Return how many requests have come by now that nobody has taken."""
        if self._load.concurrency:
            due = sum(1 for step, _ in self._asking if step <= self._steps)
            return min(due, len(self._left))
        since_s = since(now_s, self._zero_s)
        return sum(1 for _ in takewhile(lambda request: request.arrival_s <= since_s, self._left))

    def take(self, count: int) -> Iterator[tuple[ServedRequest, list[int]]]:
        """Yield so many of the next requests, and their prompts."""
        for _ in range(count):
            request = self._left.popleft()
            arrival_s = request.arrival_s
            if self._load.concurrency:
                arrival_s = since(self._asking.popleft()[1], self._zero_s)
            self.taken.rows.append(RequestRow(request=request, arrival_s=arrival_s))
            yield request, self._prompt(request)

    def _prompt(self, request: ServedRequest) -> list[int]:
        # Each begins elsewhere, so that no block of it is in a cache.
        begin = (self._seed + 1) * 7919 + request.number * 1_000_003
        usable = self._vocabulary - 16
        return [16 + (begin + index * 31) % usable for index in range(request.input_tokens)]

    def sleep_s(self, now_s: float) -> float | None:
        """Return how long until the next request comes; None: there is none."""
        if not self._left:
            return None
        # Of an engine that is idle, nothing is planned.
        self._steps += self._load.missed_steps
        # The engine's host pays for one call here, as for any that waits.
        return self._left[0].arrival_s - round(now_s - self._zero_s, CLOCK_DIGITS)

    def note(self, outputs: Any, begin_s: float, end_s: float, engine: ServingEngine) -> None:
        """Note what a step made; in a closed loop, whoever was served sends again."""
        ended = self.taken.note(outputs, begin_s, end_s, self._zero_s, engine.state())
        self._steps += 1
        if self._load.concurrency:
            self._asking += [(self._steps + self._load.missed_steps, end_s)] * len(ended)


def drive(
    engine: ServingEngine,
    load: ServingLoad,
    seed: int = 0,
    unseen: Callable[[Any], Any] = lambda function: function,
    agreed: Callable[[int], int] = lambda number: number,
) -> Taken:
    """Send all requests of a load to an engine, and return what came of them.

    Requests are taken between steps, as engines take them; each counts from when it came. The
    client is no part of the engine: ``unseen`` makes of a function one whose calls take no time.
    Where ranks of an engine each have a client, ``agreed`` returns the first one's number to all.

    Raises:
        UsageError: A request is longer than what the engine takes, or the engine makes nothing of
            those that it has.
    """
    load.check(engine.longest, engine.name)
    client = Client(load, time.monotonic(), engine.vocabulary, seed)
    count, note = unseen(client.count), unseen(client.note)
    take = unseen(lambda number: list(client.take(number)))
    idle = 0
    while True:
        now_s = time.monotonic()
        for request, prompt in take(agreed(count(now_s))):
            engine.add(request.number, prompt, request.output_tokens)
        if engine.is_idle():
            wait_s = client.sleep_s(time.monotonic())
            if wait_s is None:
                return client.taken
            time.sleep(max(wait_s, 0.0))
            continue
        begin_s = time.monotonic()
        outputs = list(engine.step())
        note(outputs, begin_s, time.monotonic(), engine)
        idle = 0 if outputs else idle + 1
        if idle > MOST_IDLE_STEPS:
            raise UsageError(
                f"{engine.name} made nothing in {idle:,} steps, with "
                f"{engine.state().waiting} requests waiting: its cache may be too small for them"
            )
