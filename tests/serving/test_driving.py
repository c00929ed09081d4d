"""Loads are driven as their requests come: times by hand, on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kernbench.errors import UsageError
from kernbench.serving import (
    Output,
    ServedRequest,
    ServingLoad,
    State,
    Taken,
    TokenLengths,
    drive,
    driving,
    figures,
)
from kernbench.serving.figures import objectives_of, row_of


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class OneAtATime:
    """An engine that makes a token of its oldest request in each step, of a second or so."""

    name, longest, vocabulary = "one at a time", 64, 100
    lasts_s = 1.0

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.queue: list[list[int]] = []
        self.prompts: list[Sequence[int]] = []

    def add(self, number: int, prompt: Sequence[int], output_tokens: int) -> None:
        self.queue.append([number, output_tokens])
        self.prompts.append(prompt)

    def step(self) -> list[Output]:
        begun_s = self.clock.now_s
        self.clock.now_s += self.lasts_s
        first = self.queue[0]
        first[1] -= 1
        if not first[1]:
            self.queue.pop(0)
        return [Output(first[0], 1, first[1] == 0, begun_s)]

    def is_idle(self) -> bool:
        return not self.queue

    def state(self) -> State:
        return State(min(1, len(self.queue)), max(0, len(self.queue) - 1), 0.25)

    def forget(self) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> OneAtATime:
    clock = Clock()
    monkeypatch.setattr(driving, "time", clock)
    return OneAtATime(clock)


def arrivals(*rows: tuple[float, int]) -> ServingLoad:
    requests = [
        ServedRequest(number=number, arrival_s=time_s, input_tokens=4, output_tokens=tokens)
        for number, (time_s, tokens) in enumerate(rows)
    ]
    return ServingLoad(name="by hand", requests=tuple(requests))


@pytest.mark.adr("0269-D2")
def test_a_request_counts_from_when_it_came_and_is_taken_between_steps(engine: OneAtATime) -> None:
    taken = drive(engine, arrivals((0, 3), (0.5, 2), (9, 1)))
    rows = taken.rows
    # The first is served from 0 to 3, the second, there at 0.5, from 3 to 5; then nobody is there.
    assert [row.token_times_s for row in rows] == [[1, 2, 3], [4, 5], [10]]
    assert [row.ttft_s for row in rows] == [1, 3.5, 1]
    assert [row.queue_s for row in rows] == [0, 2.5, 0]
    assert [row.prefill_s for row in rows] == [1, 1, 1]
    assert [row.tpot_s for row in rows] == [1, 1, None]
    assert [row.e2e_s for row in rows] == [3, 4.5, 1]
    assert [step.waiting for step in taken.steps] == [0, 1, 0, 0, 0, 0]


@pytest.mark.adr("0284-D2")
def test_rows_are_the_same_whatever_the_clock_shows_as_a_load_begins(engine: OneAtATime) -> None:
    load, clock = arrivals((0, 3), (0.123456789, 2), (9.1, 1)), engine.clock
    taken = []
    # Floats near a day are 15 ps apart.
    for began_s in (0.0, 86_400.065975600, 86_400.066007800):
        clock.now_s, engine.lasts_s = began_s, 0.012345678
        taken.append(drive(engine, load))
    assert taken[0] == taken[1] == taken[2]
    assert taken[0].rows[0].token_times_s == [0.012345678, 0.024691356, 0.037037034]


@pytest.mark.adr("0269-D2")
def test_a_closed_loop_sends_as_another_request_ends(engine: OneAtATime) -> None:
    load = ServingLoad.closed(2, 4, TokenLengths(4, 4), TokenLengths(2, 2), seed=0)
    rows = drive(engine, load).rows
    # Served one after another, two in flight: each arrives as the one before the last ends.
    assert [row.arrival_s for row in rows] == [0, 0, 2, 4]
    assert [row.token_times_s[-1] for row in rows] == [2, 4, 6, 8]


class AllTogether(OneAtATime):
    """An engine that makes a token of each of its requests in each step."""

    def step(self) -> list[Output]:
        begun_s = self.clock.now_s
        self.clock.now_s += self.lasts_s
        left = [(number, tokens - 1) for number, tokens in self.queue]
        self.queue = [[number, tokens] for number, tokens in left if tokens]
        return [Output(number, 1, not tokens, begun_s) for number, tokens in left]


@pytest.mark.adr("0304-D2")
def test_who_was_served_misses_the_step_that_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(driving, "time", clock)
    engine = AllTogether(clock)
    lengths = [(0, 1), (0, 5), (0, 2), (0, 1)]
    requests = arrivals(*lengths).requests
    for missed, first_tokens_s in ((0, [1, 1, 2, 4]), (1, [1, 1, 3, 6])):
        load = ServingLoad(name="closed", requests=requests, concurrency=2, missed_steps=missed)
        rows = drive(engine, load).rows
        assert [row.token_times_s[0] for row in rows] == first_tokens_s
        assert rows[2].arrival_s == 1
    assert ServingLoad.closed(2, 4, TokenLengths(4, 4), TokenLengths(2, 2), 0).missed_steps == 1


def test_figures_are_those_of_the_rows(engine: OneAtATime) -> None:
    taken = drive(engine, arrivals((0, 3), (0.5, 2), (9, 1)))
    result = figures(taken, objectives_of("ttft=3s,tpot=1s"), devices=2)
    assert result["time_s"] == 10
    assert result["output_tokens_per_s_per_device"] == 6 / 10 / 2
    assert result["kept"] == pytest.approx(2 / 3)
    assert result["goodput_per_s"] == 0.2
    assert result["ttft_s"] == {"mean": 1.833333333333, "p50": 1, "p90": 3.0, "p99": 3.45}
    assert result["itl_s"]["mean"] == 1
    assert result["kv_share_peak"] == 0.25
    assert row_of(taken.rows[1])["queue_s"] == 2.5


def test_prompts_of_a_load_do_not_begin_alike(engine: OneAtATime) -> None:
    drive(engine, ServingLoad.closed(1, 20, TokenLengths(8, 8), TokenLengths(1, 1), seed=0))
    assert len({tuple(prompt) for prompt in engine.prompts}) == 20
    assert all(0 <= token < 100 for prompt in engine.prompts for token in prompt)


def test_a_request_longer_than_the_model_is_refused_before_any_step(engine: OneAtATime) -> None:
    load = ServingLoad.closed(1, 2, TokenLengths(60, 60), TokenLengths(5, 5), seed=0)
    with pytest.raises(UsageError, match=r"60 tokens and asks for 5, together 65; .*takes 64"):
        drive(engine, load)
    assert not engine.prompts


def test_an_engine_that_makes_nothing_is_named(
    engine: OneAtATime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "step", list)
    monkeypatch.setattr(driving, "MOST_IDLE_STEPS", 3)
    with pytest.raises(UsageError, match="one at a time made nothing in 4 steps, with 1 request"):
        drive(engine, arrivals((0, 1), (0, 1)))


def test_arrivals_are_poisson_and_rates_scale_them() -> None:
    lengths = TokenLengths(1, 9)
    slow, fast = (ServingLoad.poisson(rate, 4000, lengths, lengths, seed=3) for rate in (2.0, 8.0))
    gaps = [
        after.arrival_s - before.arrival_s
        for before, after in zip(slow.requests, slow.requests[1:], strict=False)
    ]
    mean = sum(gaps) / len(gaps)
    # An exponential's mean is 1 / rate, and its standard deviation as large.
    assert mean == pytest.approx(0.5, rel=0.06)
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(
        0.5, rel=0.08
    )
    assert [request.arrival_s for request in fast.requests] == pytest.approx(
        [request.arrival_s / 4 for request in slow.requests]
    )
    assert [request.input_tokens for request in fast.requests] == [
        request.input_tokens for request in slow.requests
    ]


def test_bursts_come_at_once_and_keep_the_rate() -> None:
    load = ServingLoad.poisson(4.0, 4000, TokenLengths(1, 1), TokenLengths(1, 1), seed=1, burst=8)
    times = [request.arrival_s for request in load.requests]
    assert all(times[at : at + 8] == [times[at]] * 8 for at in range(0, 4000, 8))
    assert times[-1] == pytest.approx(1000, rel=0.15)


def test_all_come_at_once_at_an_infinite_rate() -> None:
    load = ServingLoad.poisson(float("inf"), 5, TokenLengths(1, 1), TokenLengths(1, 1), seed=1)
    assert {request.arrival_s for request in load.requests} == {0.0}


def test_nothing_is_taken_of_no_request() -> None:
    assert Taken().rows == []
