"""Layers of published runs: products, attention and streams, forward and backward."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernbench.accuracy.validation.predictors.clusters.jobs import (
    ClusterJob,
    NotDescribedError,
    Software,
)
from kernbench.accuracy.validation.predictors.clusters.layers import Kernels, Layers
from kernbench.accuracy.validation.predictors.clusters.models import model_of
from kernbench.hardware import load_machine

H100 = Kernels(load_machine("h100-sxm"))
JOB = ClusterJob(
    model=model_of("Llama-3 8B"), software=Software(), devices=8, seq=4096, batch=8, shard=8
)


@pytest.mark.adr("0190-D1")
def test_products_take_the_time_of_the_library() -> None:
    ours = H100.product(8192, 8192, 8192, "bf16")
    # 1.1e12 operations at 0.7 to 0.8 of 989 TFLOP/s.
    assert ours == pytest.approx(2 * 8192**3 / 740e6, rel=0.05)
    assert H100.product(8192, 8192, 8192, "fp8") < 0.6 * ours
    with pytest.raises(NotDescribedError, match="sm90 has no products of nvfp4"):
        H100.product(128, 128, 128, "nvfp4")


@pytest.mark.adr("0190-D2")
def test_what_is_done_again_is_part_of_the_backward_pass() -> None:
    def backward(recompute: str, share: float = 1.0) -> float:
        job = replace(JOB, recompute=recompute, recompute_share=share)
        return Layers(job, H100).layer().backward

    forward = Layers(JOB, H100).layer().forward
    none, full, early = backward("none"), backward("full"), backward("early")
    assert full - none == pytest.approx(forward)
    # The last product is not done again: nothing in the backward pass reads it.
    assert none < early < full
    assert none < backward("selective") < early
    assert backward("full", 0.5) == pytest.approx((none + full) / 2)


def test_frozen_weights_have_no_gradients() -> None:
    trained, frozen = (Layers(replace(JOB, frozen=each), H100).layer() for each in (False, True))
    assert frozen.forward == trained.forward
    assert frozen.backward < 0.8 * trained.backward


def test_a_host_that_launches_kernel_by_kernel_bounds_a_layer() -> None:
    slow = replace(JOB, software=Software(host_us=50_000))
    found = Layers(slow, H100).layer()
    assert (found.forward, found.backward) == (50_000, 100_000)


@pytest.mark.adr("0190-D2")
def test_scores_that_are_stored_cost_their_bytes() -> None:
    fused = Layers(JOB, H100).layer()
    stored = Layers(replace(JOB, software=Software(sinks=True)), H100).layer()
    scores = 2.0 * 32 * 4096 * 4096
    assert stored.forward - fused.forward > 0.5 * H100.stream(3 * scores)


def test_machines_without_a_library_take_the_longer_of_arithmetic_and_memory() -> None:
    tpu = Kernels(load_machine("tpu-v5e-like"))
    assert tpu.product(8192, 8192, 8192, "bf16") == pytest.approx(
        2 * 8192**3 / (0.85 * 197e6), 0.02
    )
    assert tpu.product(1, 8192, 8192, "bf16") == pytest.approx(2 * 8192**2 / (0.9 * 819e3), 0.02)
