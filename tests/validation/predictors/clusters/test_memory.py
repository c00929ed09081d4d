"""The memory of a rank in published runs, by kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from validation.predictors.clusters.jobs import ClusterJob, Software
from validation.predictors.clusters.memory import memory_of
from validation.predictors.clusters.models import model_of

JOB = ClusterJob(
    model=model_of("Llama-3.1 8B"), software=Software(), devices=128, seq=8192, batch=256,
    microbatch=2, shard=128, recompute="selective",
)  # fmt: skip


@pytest.mark.adr("0190-D4")
def test_the_peak_of_torchtitan_is_that_of_its_logits_and_activations() -> None:
    found = memory_of(JOB)
    # 62.0 GiB were measured compiled, 67.0 eager.
    assert sum(found.values()) / 2**30 == pytest.approx(64.5, rel=0.06)
    assert found["weights"] * 128 == pytest.approx(4 * 8.03e9, rel=0.01)
    assert found["logits"] == 12 * 16384 * 128256


@pytest.mark.adr("0190-D4")
def test_replicas_share_the_optimizer_alone_where_it_is_sharded() -> None:
    whole = replace(JOB, shard=1, software=Software(shards_optimizer=False))
    kept, shared = memory_of(whole), memory_of(replace(whole, software=Software()))
    assert kept["optimizer"] == pytest.approx(128 * shared["optimizer"])
    assert kept["weights"] == shared["weights"] == pytest.approx(2 * 8.03e9, rel=0.01)


def test_what_is_done_again_is_not_kept() -> None:
    kept = [
        memory_of(replace(JOB, recompute=each))["activations"]
        for each in ("full", "selective", "none")
    ]
    assert kept == sorted(kept)
    assert kept[0] < kept[2] / 4
