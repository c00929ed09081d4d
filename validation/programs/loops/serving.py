"""First tokens, and those that follow, of a closed loop that an engine serves as it is installed.

arguments: ENGINE, tokens of a prompt and of an answer at most, clients; then the options of
``kernbench serve-bench`` that describe the engine. Two loads are served, by the engine's own
scheduler, with far fewer tokens than the rows' of which they tell:

- requests that begin together, one of each client, whose answers end some steps apart, and a few
  that each come as one of them ends. So the measured ones come, whose answers are much longer than
  a prompt takes: alone, while the others decode. The first tokens are those of both, in the shares
  that the rows' clients have.
- as many requests as clients, which begin together, each with as much of an answer behind it as one
  of the clients at an instant of the loop. A token is a step that only decodes there, and the share
  of the others' prefills that falls to it.
"""

import math
import os
import random
import sys
from collections.abc import Sequence
from statistics import fmean, median

from kernbench.serving import (
    ServedRequest,
    ServingLoad,
    Taken,
    TokenLengths,
    drive,
    engine_of,
    parse_settings,
)
from kernbench.torch_bridge import unseen

SHORTEST = 0.8
"""The shortest prompt and answer of a row, as a share of the longest, which name it."""
ROUNDS = 10
"""Requests of each client, of which the first begin together.

Source of both: InferenceMAX, whose rows these are, README.md, "Benchmark Client Configuration":
``--random-range-ratio 0.8 --num-prompts $((CONC * 10)) --max-concurrency $CONC``.
"""
FEW_LATER = 6
"""Requests here that come later, at most."""
APART = 4
"""Steps between two of them."""
AT_A_TIME = 8192
"""Tokens of prompts that a step takes, of these rows' servers."""
FEW_TOKENS = 16
"""Of answers in the middle of a row's, while all decode."""
MEAN = (1 + SHORTEST) / 2


class CacheTooSmallError(RuntimeError):
    """Clients wait for places in the cache: then rows tell of queues that grow for a whole run."""


def spread_load(input_tokens: int, clients: int) -> ServingLoad:
    """Return requests that begin together, and some that come one after another."""
    later = min(clients, FEW_LATER)
    steps = math.ceil(clients * input_tokens / AT_A_TIME)
    ends = [steps + APART * number for number in range(1, later + 1)]
    outputs = ends + [ends[-1] + APART] * (clients - later) + [APART * later] * later
    source, least = random.Random(0), round(SHORTEST * input_tokens)
    inputs = [source.randint(least, input_tokens) for _ in outputs]
    return _load_of("spread", inputs, outputs, clients)


def middle_load(input_tokens: int, output_tokens: int, clients: int) -> ServingLoad:
    """Return requests as they stand at an instant: prompts and what is answered spread evenly.

    Their prompts hold what is answered, too. Whose prompt ends first makes tokens until all do, and
    then all make the same.
    """
    places = [(number + 0.5) / clients for number in range(clients)]
    of_prompts = random.Random(0).sample(places, clients)
    lengths = [
        input_tokens * (SHORTEST + (1 - SHORTEST) * prompt) + MEAN * output_tokens * answered
        for prompt, answered in zip(of_prompts, places, strict=True)
    ]
    ends = _prefilled_in(lengths)
    inputs = [
        max(1, round(length - FEW_TOKENS / 2) - ends[-1] + end)
        for length, end in zip(lengths, ends, strict=True)
    ]
    ends = _prefilled_in(inputs)
    outputs = [FEW_TOKENS + ends[-1] - end for end in ends]
    return _load_of("middle", inputs, outputs, clients)


def _prefilled_in(prompts: Sequence[float]) -> list[int]:
    """Return in which step each prompt ends, of those that begin together, beside decoding ones."""
    ends: list[int] = []
    step, room = 0, 0.0
    for tokens in prompts:
        left = tokens
        while left > 0:
            if not room:
                step, room = step + 1, float(AT_A_TIME - len(ends))
            taken = min(left, room)
            left, room = left - taken, room - taken
        ends.append(step)
    return ends


def _load_of(name: str, inputs: Sequence[int], outputs: Sequence[int], clients: int) -> ServingLoad:
    requests = (
        ServedRequest(number=number, arrival_s=0.0, input_tokens=asked, output_tokens=made)
        for number, (asked, made) in enumerate(zip(inputs, outputs, strict=True))
    )
    return ServingLoad(name=name, requests=tuple(requests), concurrency=clients)


def first_token_s(waits_s: Sequence[float], clients: int) -> float:
    """Return the mean of a row's first tokens, by those of a spread load, in order of arrival."""
    together, later = waits_s[:clients], waits_s[clients:]
    return (fmean(together) + (ROUNDS - 1) * fmean(later)) / ROUNDS


def further_token_s(step_s: float, prefill_s: float, clients: int, output_tokens: int) -> float:
    """Return the mean of a row's further tokens.

    Args:
        step_s: A step that only decodes, in the middle of the row's answers.
        prefill_s: What a request's prompt makes other steps longer.
        clients: How many there are.
        output_tokens: Of the row's longest answer.
    """
    return step_s + (clients - 1) * prefill_s / (MEAN * output_tokens)


def prefill_s(steps_s: Sequence[float], own_s: float, prompts: int) -> float:
    """Return what a prompt adds to steps, of which one that only decodes takes ``own_s``."""
    return sum(max(0.0, length - own_s) for length in steps_s) / prompts


def _gap_s(taken: Taken, last: int = 0) -> float:
    """Return the usual time between tokens, of each request's last ones."""
    return median(gap for row in taken.rows for gap in row.gaps_s[-last:])


def main(arguments: Sequence[str]) -> None:
    """Serve both loads, and say what they tell.

    Raises:
        CacheTooSmallError: Not all clients' requests are served at once.
    """
    engine_name, *numbers = arguments[:4]
    input_tokens, output_tokens, clients = map(int, numbers)
    settings = parse_settings([engine_name, *arguments[4:], "--rate=1"])
    engine = engine_of(engine_name, settings.of_engine)
    is_first = int(os.environ.get("RANK", "0")) == 0
    warm = ServingLoad.closed(
        1, 1, TokenLengths(input_tokens, input_tokens), TokenLengths(2, 2), seed=-1
    )
    drive(engine, warm, 1, unseen)
    spread = drive(engine, spread_load(input_tokens, clients), 0, unseen)
    if is_first:
        waits = [row.ttft_s for row in spread.rows]
        print(f"first token {1e3 * first_token_s(waits, clients):.6f} ms", flush=True)
    together = drive(engine, middle_load(input_tokens, output_tokens, clients), 0, unseen)
    # What this program makes of them is no part of the engine's steps.
    token_s = unseen(_told)(spread, together, input_tokens, output_tokens, clients)
    if is_first:
        print(f"step {1e3 * token_s:.6f} ms", flush=True)


def _told(
    spread: Taken, together: Taken, input_tokens: int, output_tokens: int, clients: int
) -> float:
    running = max(step.running for step in together.steps)
    # Requests that begin together end together, too, and are longest then.
    longest = (input_tokens + output_tokens) / (input_tokens + output_tokens / 2)
    held = longest * max(step.kv_share for step in together.steps)
    if running < clients or held > 1:
        most = min(running, int(clients / max(held, 1)))
        raise CacheTooSmallError(f"the cache holds {most} of {clients} requests at a time")
    steps_s = [step.end_s - step.begin_s for step in spread.steps]
    more_s = prefill_s(steps_s, _gap_s(spread), len(spread.rows))
    return further_token_s(_gap_s(together, FEW_TOKENS - 1), more_s, clients, output_tokens)


if __name__ == "__main__":
    main(sys.argv[1:])
