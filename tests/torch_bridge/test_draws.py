"""Random numbers of simulated devices, beside the CPU's."""

from __future__ import annotations

import runpy
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tests.tiers import examples  # noqa: E402
from tests.torch_bridge.running import PROGRAMS, simulated  # noqa: E402

run = partial(simulated, "draws.py")


DRAWS = runpy.run_path(str(PROGRAMS / "draws.py"))["DRAWS"]


@pytest.mark.adr("0063-D6")
@examples(10)
@given(
    seed=st.integers(-(1 << 63), (1 << 64) - 1),
    draws=st.lists(st.tuples(st.sampled_from(sorted(DRAWS)), st.integers(1, 40)), max_size=8),
)
@example(seed=3, draws=[("rand", 5), ("into", 7)])
def test_draws_of_a_device_are_those_of_the_cpu(seed: int, draws: list[tuple[str, int]]) -> None:
    asked = (f"{name}:{size}" for name, size in draws)
    run("draws_of_a_device_are_those_of_the_cpu", seed, *asked)


@pytest.mark.adr("0063-D7")
@pytest.mark.adr("0063-D8")
def test_states_lead_back_to_their_numbers(tmp_path: Path) -> None:
    run("save_states", tmp_path)
    run("resume", tmp_path)


@pytest.mark.adr("0063-D8")
def test_ranks_that_drew_differently_draw_alike_for_a_dtensor() -> None:
    run("ranks_that_drew_differently_draw_alike_for_a_dtensor", nprocs=2)
