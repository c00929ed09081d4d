"""Routed experts of published runs: what runs around their products."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernbench.hardware import load_machine
from validation.predictors.clusters.experts import experts
from validation.predictors.clusters.jobs import ClusterJob, Software
from validation.predictors.clusters.kernels import Direction, Kernels
from validation.predictors.clusters.models import model_of

GB200 = Kernels(load_machine("gb200"))
ROWS, HELD, HIDDEN, INNER = 4096 * 4, 8, 2880, 2880
"""Rows and experts of a rank of GPT OSS over 16 ranks."""
OSS = ClusterJob(
    model=model_of("GPT OSS 120B"), software=Software(), devices=64, seq=4096, batch=64, ep=16
)
PLAIN = replace(OSS, model=replace(OSS.model, bias=False))


def of(job: ClusterJob, **software: object) -> Direction:
    return experts(replace(job, software=Software(**software)), GB200)  # type: ignore[arg-type]


def between(more: Direction, less: Direction) -> tuple[float, float]:
    return more.forward - less.forward, more.backward - less.backward


@pytest.mark.parametrize(("wide", "forward", "backward"), [(False, 12, 16), (True, 28, 40)])
def test_biases_of_experts_are_added_and_clamped_by_operations_of_their_own(
    wide: bool, forward: int, backward: int
) -> None:
    """Each operand and result of the operations in Megatron's source, in bytes of its dtype.

    PyTorch's kernels move them at 0.62 and 0.5 of memory's rate.
    """
    found = between(of(OSS, wide_probabilities=wide), of(PLAIN, wide_probabilities=wide))
    moved = (
        ROWS * (16 * INNER + forward * HIDDEN) / 0.62,
        ROWS * (20 * INNER + backward * HIDDEN) / 0.5,
    )
    assert found == pytest.approx(tuple(map(GB200.stream, moved)))


def test_an_activation_that_is_computed_again_moves_its_bytes_again() -> None:
    forward, backward = between(of(OSS, recomputes_activation=True), of(OSS))
    # Three numbers of 16 bits, and the clamps.
    assert forward == 0
    assert backward == pytest.approx(GB200.stream(ROWS * INNER * (3 * 2 + 16 / 0.62)))


def test_a_gated_activation_of_megatron_moves_more_than_one_kernel_would() -> None:
    found = between(of(PLAIN, gated_activation=(1.5, 3.0)), of(PLAIN))
    activation = ROWS * INNER * 3
    assert found == pytest.approx(
        (GB200.stream(0.5 * 2.0 * activation), GB200.stream(2.0 * 3.4 * activation))
    )


def test_each_expert_of_a_rank_is_launched_by_the_host() -> None:
    forward, backward = between(of(PLAIN, expert_launch_us=10.0), of(PLAIN))
    assert (forward, backward) == pytest.approx((10 * HELD * 2, 10 * HELD * 4))
    narrow = replace(PLAIN, precision="fp8")
    forward, backward = between(of(narrow, expert_launch_us=10.0), of(narrow))
    assert (forward, backward) == pytest.approx((10 * HELD * 4, 10 * HELD * 6))
    fused = of(narrow, fused_experts=True)
    assert of(narrow, fused_experts=True, expert_launch_us=10.0) == fused


def test_fused_experts_convert_only_what_comes_from_elsewhere() -> None:
    narrow = replace(PLAIN, precision="fp8")
    forward, backward = between(of(narrow), of(narrow, fused_experts=True))
    # The second product's input; the first one's gradient, of both halves: read, written twice.
    activation = 3 * INNER
    assert forward == pytest.approx(GB200.stream(ROWS * (2.0 * activation + 4 * INNER)))
    assert backward == pytest.approx(GB200.stream(ROWS * (3.4 * activation + 8 * INNER)))


def test_rows_that_are_kept_in_pages_are_copied_there_and_back() -> None:
    both = between(of(PLAIN, fused_experts=True, stashes_rows=True), of(PLAIN, fused_experts=True))
    kept = 2 * (HIDDEN + INNER) + 2 * 2 * INNER
    assert both == pytest.approx((GB200.stream(2.0 * ROWS * kept),) * 2)


def test_a_slow_gradient_is_that_of_biases_alone() -> None:
    for job, slower in ((OSS, True), (PLAIN, False)):
        slow = of(job, fused_experts=True, slow_bias_gradient=8.0)
        forward, backward = between(slow, of(job, fused_experts=True))
        assert forward == 0
        assert (backward > 0) is slower


def test_rows_are_sorted_where_a_rank_has_several_experts() -> None:
    sorted_ = between(of(PLAIN, sorts_rows=True), of(PLAIN))
    assert sorted_ == pytest.approx((GB200.stream(8.0 * ROWS * HIDDEN),) * 2)
    single = replace(PLAIN, ep=128, devices=128)
    assert of(single, sorts_rows=True) == of(single)
