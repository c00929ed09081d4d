"""Layers of published runs: products, attention and streams, forward and backward."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernbench.hardware import load_machine
from validation.predictors.clusters.jobs import (
    ClusterJob,
    NotDescribedError,
    Software,
)
from validation.predictors.clusters.kernels import Kernels
from validation.predictors.clusters.layers import Layers
from validation.predictors.clusters.models import model_of

H100, GB200 = Kernels(load_machine("h100-sxm")), Kernels(load_machine("gb200"))
JOB = ClusterJob(
    model=model_of("Llama-3 8B"), software=Software(), devices=8, seq=4096, batch=8, shard=8
)

OSS = ClusterJob(
    model=model_of("GPT OSS 120B"), software=Software(), devices=64, seq=4096, batch=64, ep=16
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


def test_conversions_that_reach_half_of_memorys_rate_take_twice_as_long() -> None:
    def backward(share: float, precision: str = "fp8") -> float:
        software = replace(JOB.software, dynamic_scales=True, cast_share=share)
        return Layers(replace(JOB, software=software, precision=precision), H100).layer().backward

    whole, half, third = backward(1.0), backward(0.5), backward(1 / 3)
    assert half - whole == pytest.approx(third - half)
    # Gradients of results and weights, six bytes each.
    model = JOB.model
    results = model.hidden * 2 + 2 * model.intermediate + (model.heads + 2 * 8) * model.head_dim
    weights = model.attention_weights + model.mlp_weights
    more = H100.stream(6.0 * (4096 * results + weights))
    assert half - whole == pytest.approx(more, rel=1e-6)
    assert backward(0.5, "bf16") == backward(1.0, "bf16")


def test_frozen_weights_have_no_gradients() -> None:
    trained, frozen = (Layers(replace(JOB, frozen=each), H100).layer() for each in (False, True))
    assert frozen.forward == trained.forward
    assert frozen.backward < 0.8 * trained.backward


def test_a_host_that_launches_kernel_by_kernel_bounds_a_layer() -> None:
    slow = replace(JOB, software=Software(host_us=50_000))
    found = Layers(slow, H100).layer()
    assert (found.forward, found.backward) == (50_000, 100_000)


def test_every_second_layer_slides_where_a_model_has_windows() -> None:
    whole = replace(OSS, model=replace(OSS.model, window=0))
    widest = replace(OSS, model=replace(OSS.model, window=OSS.seq))
    slid, all_keys = (Layers(each, GB200).layer() for each in (OSS, whole))
    assert slid.forward < all_keys.forward
    assert slid.backward < all_keys.backward
    assert Layers(widest, GB200).layer().forward == pytest.approx(all_keys.forward)


def test_a_backward_pass_in_8_bits_slides_no_window() -> None:
    def backward(attention: str, window: int) -> float:
        job = replace(OSS, software=Software(attention=attention))
        return Layers(replace(job, model=replace(OSS.model, window=window)), GB200).layer().backward

    assert backward("cudnn_mxfp8", 128) == pytest.approx(backward("cudnn_mxfp8", 0))
    assert backward("cudnn", 128) < backward("cudnn", 0)


def test_operations_that_are_not_fused_move_their_bytes() -> None:
    fused = Layers(OSS, GB200).layer()
    apart = Layers(replace(OSS, software=Software(fused_rotation=False)), GB200).layer()
    turned = 4096 * (64 + 8) * 64
    assert apart.forward - fused.forward == pytest.approx(GB200.stream(24.0 * turned))
    assert apart.backward - fused.backward == pytest.approx(GB200.stream(34.0 * turned))


def test_a_gated_activation_of_a_dense_layer_moves_more_than_one_kernel_would() -> None:
    one = Layers(JOB, H100).layer()
    software = Software(gated_activation=(1.5, 3.0))
    more = Layers(replace(JOB, software=software), H100).layer()
    activation = 2.0 * 4096 * 14336 * 3
    assert more.forward - one.forward == pytest.approx(H100.stream(0.5 * activation))
    assert more.backward - one.backward == pytest.approx(H100.stream(2.0 * 1.7 * activation))
    plain = replace(JOB, model=replace(JOB.model, gated=False))
    assert Layers(replace(plain, software=software), H100).layer() == Layers(plain, H100).layer()


def test_machines_without_a_library_take_the_longer_of_arithmetic_and_memory() -> None:
    tpu = Kernels(load_machine("tpu-v5e-like"))
    assert tpu.product(8192, 8192, 8192, "bf16") == pytest.approx(
        2 * 8192**3 / (0.85 * 197e6), 0.02
    )
    assert tpu.product(1, 8192, 8192, "bf16") == pytest.approx(2 * 8192**2 / (0.9 * 819e3), 0.02)
