"""flex_attention on a device, against attention written out."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.runtime_api import RuntimeContext  # noqa: E402
from tests.tiers import daily  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

PROGRAM = "flex_attention.py"


def times(context: RuntimeContext, several: bool = False) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for instance in context.op_log.instances:
        if "flex" in instance.template.name:
            assert several or instance.template.name not in numbers, "one operation each way"
            numbers[instance.template.name] = instance.template.duration_ps
    return numbers


@pytest.mark.adr("0220-D4")
@pytest.mark.parametrize(
    "case",
    daily(
        (True, 2, None),
        (True, 4, 20_000),
        (False, 2, 1),
        of=product((False, True), (4, 2), (None, 20_000, 1)),
    ),
    ids=str,
)
def test_numbers_and_gradients_are_those_of_the_definition(
    case: tuple[bool, int, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    masked, kv_heads, most = case
    # Blocks of 32 are for the bridge's own: Inductor's templates have none so small.
    monkeypatch.setenv("KERNBENCH_COMPILE", "eager")
    if most is not None:
        # 26 queries at a time, cut to blocks of 32 where there are any; and one at a time.
        monkeypatch.setattr("kernbench.torch_bridge.replaced.flex_attention.MOST_SCORES", most)
    context = simulated(PROGRAM, "compared", "masked" if masked else "", kv_heads)
    assert set(times(context)) == {"flex_attention", "flex_attention_backward"}


@pytest.mark.adr("0220-D5")
def test_blocks_that_the_mask_leaves_out_take_no_time() -> None:
    dense = simulated(PROGRAM, "long", "all_keys")
    window = simulated(PROGRAM, "long", "window")
    (time,) = times(dense).values()
    (flash,) = (
        instance.template.duration_ps
        for instance in dense.op_log.instances
        if "scaled_dot" in instance.template.name
    )
    assert time == flash
    assert times(window)["flex_attention"] < 0.5 * time


def test_the_host_calls_nothing_of_the_definition() -> None:
    def called_ps(data: bool) -> int:
        context = simulated(PROGRAM, "long", "all_keys", data=data, machine="h100-sxm")
        spans = context.op_log.host_spans
        return sum(span.end_ps - span.start_ps for span in spans if span.kind == "python")

    called_ps(False)  # PyTorch has what the first call computes once
    assert called_ps(True) == called_ps(False) > 0


@pytest.mark.adr("0220-D5")
def test_without_data_every_key_of_a_mask_that_is_not_known_counts() -> None:
    dense = simulated(PROGRAM, "long", "all_keys", "8192", data=False)
    assert times(simulated(PROGRAM, "long", "window", "8192", data=False)) == times(dense)
    small = simulated(PROGRAM, "long", "window", data=False)
    assert times(small) == times(simulated(PROGRAM, "long", "window"))


def test_on_the_host_it_is_pytorchs_own() -> None:
    context = simulated(PROGRAM, "on_the_host")
    assert not context.op_log.instances


@pytest.mark.adr("0220-D6")
def test_long_sequences_are_done_a_piece_at_a_time_with_the_keys_that_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kernbench.torch_bridge.replaced import flex_attention

    shapes = []
    attend: Any = vars(flex_attention)["math_attention"]

    def seen(query, key, *rest):
        shapes.append((query.size(2), key.size(2)))
        return attend(query, key, *rest)

    monkeypatch.setattr(flex_attention, "math_attention", seen)
    monkeypatch.setattr(flex_attention, "MOST_SCORES", 8 * 256 * 1024)
    simulated(PROGRAM, "long", "window")
    # A window of 128 reaches into one block of 128 before the piece's own.
    assert shapes == [(256, 256), (256, 384), (256, 384), (256, 384)]


@pytest.mark.adr("0094-D1")
def test_in_a_graph_it_is_done_again_for_what_is_there_then() -> None:
    assert times(simulated(PROGRAM, "in_a_graph"), several=True)
