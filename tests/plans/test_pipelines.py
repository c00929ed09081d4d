"""Schedules of pipelines against closed forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.plans.pipelines import (
    forward_us,
    one_forward_one_backward_us,
)

STAGES = st.integers(1, 8)
TIMES = st.integers(1, 50).map(float)


@given(stages=STAGES, microbatches=st.integers(1, 20), stage_us=TIMES, send_us=TIMES)
def test_one_way_the_last_microbatch_waits_for_those_before_it(
    stages: int, microbatches: int, stage_us: float, send_us: float
) -> None:
    expected = (microbatches + stages - 1) * stage_us + (stages - 1) * send_us
    assert forward_us(stages, microbatches, stage_us, send_us) == pytest.approx(expected)


@given(stages=STAGES, rounds=st.integers(1, 5), forward=TIMES, backward=TIMES)
def test_the_bubble_is_one_microbatch_less_than_stages(
    stages: int, rounds: int, forward: float, backward: float
) -> None:
    microbatches = stages * rounds
    backward_us = one_forward_one_backward_us(stages, microbatches, forward, backward, 0.0)
    assert backward_us == pytest.approx((microbatches + stages - 1) * (forward + backward))


@given(
    stages=st.integers(2, 6), rounds=st.integers(1, 4), chunks=st.integers(2, 4),
    forward=TIMES, backward=TIMES,
)  # fmt: skip
def test_interleaving_divides_the_bubble_by_the_pieces(
    stages: int, rounds: int, chunks: int, forward: float, backward: float
) -> None:
    """Narayanan et al. 2021, section 2.2.2: the bubble is ``(p - 1) (f + b) / v``."""
    microbatches = stages * rounds
    backward_us = one_forward_one_backward_us(stages, microbatches, forward, backward, 0.0, chunks)
    ideal = microbatches * (forward + backward)
    assert backward_us == pytest.approx(ideal + (stages - 1) * (forward + backward) / chunks)


@given(stages=STAGES, microbatches=st.integers(1, 12), send_us=TIMES)
def test_sends_never_help(stages: int, microbatches: int, send_us: float) -> None:
    with_sends = one_forward_one_backward_us(stages, microbatches, 10.0, 20.0, send_us)
    without = one_forward_one_backward_us(stages, microbatches, 10.0, 20.0, 0.0)
    assert with_sends >= without >= microbatches * 30.0


@given(stages=st.integers(1, 6), microbatches=st.integers(1, 12), send_us=TIMES)
def test_waiting_for_sends_never_helps(stages: int, microbatches: int, send_us: float) -> None:
    common = (stages, microbatches, 10.0, 20.0, send_us)
    waiting = one_forward_one_backward_us(*common, waits_for_sends=True)
    assert waiting >= one_forward_one_backward_us(*common)
    if stages == 1:
        assert waiting == pytest.approx(30.0 * microbatches)


@given(stages=st.integers(1, 6), microbatches=st.integers(1, 12), end=TIMES)
def test_the_last_stage_does_the_loss_of_every_microbatch(
    stages: int, microbatches: int, end: float
) -> None:
    backward_us = one_forward_one_backward_us(
        stages, microbatches, 10.0, 20.0, 0.0, ends_us=(end, 2 * end)
    )
    # The last stage never waits between its microbatches, and the others follow it.
    expected = (stages - 1) * 30.0 + microbatches * (30.0 + 3 * end)
    assert backward_us == pytest.approx(expected)
