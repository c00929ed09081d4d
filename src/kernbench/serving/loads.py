"""Loads: which requests come, when, and how long they are; all follows from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.errors import UsageError


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """Numbers of tokens, evenly spread between two bounds."""

    least: int
    most: int

    @classmethod
    def of(cls, text: str, option: str) -> TokenLengths:
        """Return what ``N`` or ``LEAST:MOST`` says.

        Raises:
            UsageError: It is no such text, or below 1.

        >>> TokenLengths.of("128:1024", "--input")
        TokenLengths(least=128, most=1024)
        """
        parts = text.split(":")
        if len(parts) > 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise UsageError(
                f"{option} must be a number of tokens from 1, or two such as 128:1024, but got "
                f"{text!r}"
            )
        least, most = int(parts[0]), int(parts[-1])
        if least > most:
            raise UsageError(f"{option} {text}: the first number must not be above the second")
        return cls(least, most)

    def draw(self, source: random.Random) -> int:
        """Return a number between the bounds."""
        return source.randint(self.least, self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """A request, before it is sent."""

    number: int
    arrival_s: float
    """Seconds from the start of the load; 0 in a closed loop, where it is sent as another ends."""
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLoad:
    """Requests in the order of their arrival."""

    name: str
    """What reports call it: ``rate 4``."""
    requests: tuple[ServedRequest, ...]
    concurrency: int = 0
    """How many are in flight in a closed loop; 0: each comes when it comes."""
    missed_steps: int = 0
    """Steps of the engine, in a closed loop, until it takes what a client sends who was served: it
    has planned the next one by the time that a client has read its last token."""
    rate: float = 0.0
    """Requests a second on average; 0 where that was not asked for."""

    @classmethod
    def closed(
        cls, concurrency: int, count: int, inputs: TokenLengths, outputs: TokenLengths, seed: int
    ) -> ServingLoad:
        """Return a closed loop: each of ``concurrency`` clients sends as its last request ends."""
        requests = _drawn([0.0] * count, inputs, outputs, seed)
        name = f"concurrency {concurrency}"
        return cls(name=name, requests=requests, concurrency=concurrency, missed_steps=1)

    @classmethod
    def poisson(
        cls,
        rate: float,
        count: int,
        inputs: TokenLengths,
        outputs: TokenLengths,
        seed: int,
        burst: int = 1,
    ) -> ServingLoad:
        """Return arrivals at a mean rate: bursts of ``burst`` requests, a Poisson process of them.

        Loads of one seed and other rates are the same requests, nearer to each other. At an
        infinite rate all come at once.
        """
        source = random.Random(f"arrivals {seed}")
        now_s, arrivals = 0.0, []
        for number in range(count):
            if number and number % burst == 0:
                now_s += source.expovariate(1.0) * burst / rate
            arrivals.append(now_s)
        of_burst = f", bursts of {burst}" if burst > 1 else ""
        name = f"rate {rate:g}{of_burst}"
        return cls(name=name, requests=_drawn(arrivals, inputs, outputs, seed), rate=rate)

    @classmethod
    def recorded(cls, name: str, rows: Sequence[tuple[float, int, int]]) -> ServingLoad:
        """Return the requests of a trace: seconds, tokens in, tokens out of each."""
        ordered = sorted(rows, key=lambda row: row[0])
        begin_s = ordered[0][0]
        requests = tuple(
            ServedRequest(
                number=number,
                arrival_s=time_s - begin_s,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
            )
            for number, (time_s, input_tokens, output_tokens) in enumerate(ordered)
        )
        return cls(name=name, requests=requests)

    def check(self, longest: int, engine: str) -> None:
        """Refuse a request that is longer than what an engine takes.

        Raises:
            UsageError: There is one; names the longest.
        """
        worst = max(self.requests, key=lambda request: request.input_tokens + request.output_tokens)
        tokens = worst.input_tokens + worst.output_tokens
        if tokens > longest:
            raise UsageError(
                f"{self.name}: request {worst.number} has {worst.input_tokens:,} tokens and asks "
                f"for {worst.output_tokens:,}, together {tokens:,}; {engine} takes {longest:,}: "
                "ask for less, or give --max-model-len if the model takes more"
            )


def _drawn(
    arrivals: Sequence[float], inputs: TokenLengths, outputs: TokenLengths, seed: int
) -> tuple[ServedRequest, ...]:
    source = random.Random(f"lengths {seed}")
    return tuple(
        ServedRequest(
            number=number,
            arrival_s=arrival_s,
            input_tokens=inputs.draw(source),
            output_tokens=outputs.draw(source),
        )
        for number, arrival_s in enumerate(arrivals)
    )
