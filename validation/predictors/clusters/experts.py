"""Routed experts of a rank: rows brought to them and back, products, and what runs around those."""

from __future__ import annotations

from validation.predictors.clusters.jobs import ClusterJob
from validation.predictors.clusters.kernels import Direction, Kernels, linear

_ORDERED_BYTES = 8.0, 10.0
"""Of a number of a row that is brought to the order of experts, and back, forward and backward: in
16 bits, read and written."""
_SORTED_BYTES = 8.0
"""More than these where a kernel sorts them after the exchange, and before the one back. Source:
NVIDIA/Megatron-LM @core_v0.16.0, megatron/core/transformer/moe/token_dispatcher.py."""
_ACTIVATION_BYTES = 2.0, 3.4
"""Of a number that an activation in one kernel reads or writes, in 16 bits; and its gradient."""
_CLAMPED_BYTES = 16.0, 20.0
"""Of a result of a gated activation whose two halves PyTorch's operations clamp and put together
again: four numbers in, four out. Of its gradient: for each half two numbers in and one out, and the
halves put together. Source: NVIDIA/Megatron-LM @core_v0.16.0,
megatron/core/fusions/fused_bias_geglu.py, ``weighted_bias_quick_geglu_impl``."""
_BIAS_BYTES = 12.0, 16.0
"""Of a number to which PyTorch's operations add a bias that is scaled by the row's probability: the
product, the sum, and all experts' rows put together. Of its gradient: rows put together, and two
products with their sums. Source: the same, megatron/core/transformer/moe/experts.py,
``TEGroupedMLP._apply_bias``."""
_WIDE_BIAS_BYTES = 28.0, 40.0
"""The same where probabilities have 32 bits, and so have all results before the last one."""
_STASHED_BYTES = 4.0
"""Of a byte that is kept: read and written before the backward pass, and again for it."""
_KERNELS = {"bf16": (2, 4), "fp8": (4, 6), "nvfp4": (4, 6)}
"""Of an expert by precision, forward and backward: products, and conversions of what they take."""
_BIAS_KERNELS = 2, 6
_EAGER_SHARE = 0.62, 0.5
"""Of memory's rate, what PyTorch's own kernels of rows reach, forward and backward: its RMS norms
of 100 MB and more on GB200 and H200, whose backward pass reads the rows twice. Source:
NVIDIA/cudnn-frontend @3929da2, benchmark/norms/results."""


def experts(job: ClusterJob, kernels: Kernels) -> Direction:
    """Return the time of a layer's routed experts on a rank, without their exchange."""
    model, software = job.model, job.software
    held = model.experts // job.ep
    own = job.tokens / job.tp
    rows = own * model.top_k
    each = max(round(rows / held), 1)
    wide = 2 if model.gated else 1
    inner = model.expert_intermediate
    apart = not software.fused_experts
    first = linear(job, kernels, each, wide * inner, model.hidden, held, converts=(True, apart))
    second = linear(job, kernels, each, model.hidden, inner, held, converts=(apart, True))
    router = kernels.stream(4.0 * own * (model.hidden + 4 * model.experts))
    sorts = _SORTED_BYTES * (software.sorts_rows and held > 1)
    ordered = [rows * model.hidden * (each + sorts) for each in _ORDERED_BYTES]
    found = (
        first
        + second
        + Direction(kernels.stream(ordered[0]) + router, kernels.stream(ordered[1]) + 2 * router)
    )
    if apart:
        return found + _around(job, kernels, rows, held)
    if model.bias and software.slow_bias_gradient > 1:
        gradient = kernels.product(each, inner, model.hidden, job.precision, held)
        found += Direction(0.0, (software.slow_bias_gradient - 1) * gradient)
    if software.stashes_rows:
        # Inputs of both products in 8 bits, along rows and columns, and the first one's results.
        kept = 2.0 * (model.hidden + inner) + 2.0 * wide * inner
        half = kernels.stream(_STASHED_BYTES / 2 * rows * kept)
        found += Direction(half, half)
    return found


def _around(job: ClusterJob, kernels: Kernels, rows: float, held: int) -> Direction:
    """Return the time of activations that are kernels of their own, and of experts' launches."""
    model, software = job.model, job.software
    inner, wide = model.expert_intermediate, 2 if model.gated else 1
    clamped = 0.0
    often = software.gated_activation if model.gated else (1.0, 1.0)
    activation = [(wide + 1) * inner * a * b for a, b in zip(_ACTIVATION_BYTES, often, strict=True)]
    eager = [0.0, 0.0]
    launches = list(_KERNELS[job.precision])
    if model.bias:
        added = _WIDE_BIAS_BYTES if software.wide_probabilities else _BIAS_BYTES
        clamped = inner * _CLAMPED_BYTES[0] / _EAGER_SHARE[0]
        eager = [
            (inner * a + model.hidden * b) / share
            for a, b, share in zip(_CLAMPED_BYTES, added, _EAGER_SHARE, strict=True)
        ]
        launches = [a + b for a, b in zip(launches, _BIAS_KERNELS, strict=True)]
    moved = [a + b for a, b in zip(activation, eager, strict=True)]
    if software.recomputes_activation:
        moved[1] += activation[0] + clamped
    hosts = [software.expert_launch_us * held * each for each in launches]
    return Direction(*(kernels.stream(rows * a) + b for a, b in zip(moved, hosts, strict=True)))
