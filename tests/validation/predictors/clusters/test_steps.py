"""Steps of published runs: what shows of their exchanges, and of their pipelines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernbench.hardware import changed_machine, load_machine
from validation.predictors.clusters.jobs import ClusterJob, Software
from validation.predictors.clusters.kernels import Kernels
from validation.predictors.clusters.models import model_of
from validation.predictors.clusters.steps import StepParts, step_of
from validation.predictors.clusters.wires import ClusterWires

H100 = load_machine("h100-sxm")
SHARDED = ClusterJob(
    model=model_of("Llama-3 8B"), software=Software(), devices=32, seq=4096, batch=32, shard=32
)


def step(job: ClusterJob, gbps: float = 50) -> StepParts:
    machine = changed_machine(H100, {"links.scale_out.bandwidth_gbps": gbps})
    return step_of(job, Kernels(machine), ClusterWires(machine))


@pytest.mark.adr("0190-D2")
def test_gathers_of_weights_hide_behind_layers_until_the_network_is_too_slow() -> None:
    fast, slow = step(SHARDED).through_us, step(SHARDED, gbps=5).through_us
    alone = step(replace(SHARDED, software=Software(contention=0))).through_us
    # They are hidden, and take some of the products' memory and PEs meanwhile.
    assert alone < fast < 1.1 * alone
    assert slow > 3 * fast


@pytest.mark.adr("0190-D2")
def test_sums_over_replicas_show_where_one_microbatch_cannot_hide_them() -> None:
    whole = replace(SHARDED, shard=1)
    hidden = step(whole)
    shown = step(replace(whole, software=Software(gradients_hidden=False)))
    assert hidden.gradients_us < 0.4 * shown.gradients_us
    assert hidden.through_us == shown.through_us
    assert step(replace(whole, frozen=True)).gradients_us == 0


def test_a_pipeline_of_more_microbatches_wastes_less() -> None:
    piped = replace(SHARDED, shard=1, pp=4, batch=64)
    few, many = step(piped), step(replace(piped, batch=512))
    assert many.through_us < 8 * few.through_us
    pieces = step(replace(piped, pieces=4))
    assert pieces.through_us < few.through_us


def test_experts_on_several_nodes_wait_for_the_network() -> None:
    mixture = ClusterJob(
        model=model_of("Qwen3_30B"), software=Software(), devices=32, seq=4096, batch=32
    )
    inside, between = (step(replace(mixture, ep=ep)).through_us for ep in (8, 32))
    assert between > inside
    overlapped = replace(mixture, ep=32, software=Software(exchange_hidden=0.5))
    assert step(overlapped).through_us < between


def test_experts_are_stepped_by_those_ranks_that_hold_them() -> None:
    mixture = ClusterJob(
        model=model_of("Qwen3_30B"), software=Software(), devices=32, seq=4096, batch=32
    )
    # However they lie: all parameters are stepped once, an equal part on each rank.
    updates = [step(replace(mixture, ep=ep)).update_us for ep in (8, 32)]
    assert updates[0] == pytest.approx(updates[1])
    model = mixture.model
    of_all = model.layers * (model.attention_weights + model.expert_weights) / 32
    assert updates[0] == pytest.approx(Kernels(H100).stream(30 * of_all), rel=0.1)
