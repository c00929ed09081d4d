"""A layer's time on one rank: products, attention and streams, forward and backward."""

from __future__ import annotations

from dataclasses import replace

from kernbench.library_kernels import AttentionProblem
from validation.predictors.clusters.experts import experts
from validation.predictors.clusters.jobs import MXFP8_ATTENTION, ClusterJob
from validation.predictors.clusters.kernels import Direction, Kernels, linear

_FORWARD_KERNELS, _BACKWARD_KERNELS = 14, 26
_UPDATE_BYTES = 30
"""Of a parameter in Adam: weight, gradient and two moments in float32, and the weight of 16 bits.
"""
_ROTATION_BYTES = 24.0, 34.0
"""Of a number that PyTorch's operations rotate, in 16 bits, forward and backward: two products with
cosines and sines, a negated half, sums and concatenations. Source: NVIDIA/Megatron-LM
@core_v0.16.0, megatron/core/models/common/embeddings/rope_utils.py."""
_LOSS_BYTES = 20
"""Of a logit: read for the loss in 32 bits, and its gradient."""


class Layers:
    """The layers of one job."""

    def __init__(self, job: ClusterJob, kernels: Kernels) -> None:
        self._job = job
        self._kernels = kernels

    def layer(self) -> Direction:
        """Return the time of a layer without its exchanges, with what is done again."""
        job, model, kernels = self._job, self._job.model, self._kernels
        tokens, tp = job.tokens, job.tp
        products = [
            linear(job, kernels, tokens, self._queries // tp, model.hidden),
            linear(job, kernels, tokens, model.hidden, model.heads * model.head_dim // tp),
        ]
        wide = 2 if model.gated else 1
        if model.intermediate:
            products.append(
                linear(job, kernels, tokens, wide * model.intermediate // tp, model.hidden)
            )
            products.append(linear(job, kernels, tokens, model.hidden, model.intermediate // tp))
        if model.experts:
            products.append(experts(job, kernels))
        scores, streams = self._scores(), self._streams(wide)
        in_all = sum(products, scores + streams)
        forward = sum(each.forward for each in products)
        again = {
            "none": 0.0,
            "full": in_all.forward,
            "early": in_all.forward - products[-1].forward,
            "selective": forward / 2 + streams.forward,
        }[job.recompute]
        host_us = job.software.host_us
        return Direction(
            max(in_all.forward, host_us),
            max(in_all.backward + job.recompute_share * again, 2 * host_us),
        )

    def _streams(self, wide: int) -> Direction:
        """Return the time of what only moves bytes, and of the gaps between kernels."""
        job, model, kernels = self._job, self._job.model, self._kernels
        tokens, software = job.tokens, job.software
        each = 2.0 * tokens / job.tp * software.streams_inside
        often = software.gated_activation if model.gated else (1.0, 1.0)
        inside = [
            each * (model.intermediate * (wide + 1) * moved + 2 * self._queries) for moved in often
        ]
        own = tokens / job.tp * model.hidden
        gaps = software.kernels_us
        found = Direction(
            kernels.stream(software.streams_forward * own + inside[0]) + gaps * _FORWARD_KERNELS,
            kernels.stream(software.streams_backward * own + 1.7 * inside[1])
            + gaps * _BACKWARD_KERNELS,
        )
        if software.fused_rotation:
            return found
        turned = tokens / job.tp * (model.heads + model.kv_heads) * model.head_dim
        return found + Direction(*(kernels.stream(each * turned) for each in _ROTATION_BYTES))

    @property
    def _queries(self) -> int:
        """Columns of the product for queries, keys and values; of latent ones, as many numbers."""
        model = self._job.model
        if model.latent_weights:
            return model.latent_weights // model.hidden - model.heads * model.head_dim
        return (model.heads + 2 * model.kv_heads) * model.head_dim

    def _scores(self) -> Direction:
        job, model = self._job, self._job.model
        narrow = job.software.attention == MXFP8_ATTENTION
        length = max(round(job.seq * (1 - job.padding)), 1)
        # Ranks that share a sequence have an early and a late part of it, so that each sees half.
        problem = AttentionProblem(
            batch=job.microbatch,
            q_len=length // job.cp,
            kv_len=length // (2 if job.cp > 1 and job.causal else 1),
            heads=max(model.heads // job.tp, 1),
            kv_heads=max(model.kv_heads // job.tp, 1),
            head_dim=model.head_dim,
            causal=job.causal and job.cp == 1,
            dtype="float8_e4m3fn" if narrow else "bfloat16",
            q_bytes=1 if narrow else 2,
            kv_bytes=1 if narrow else 2,
        )
        whole = self._kernels.attention(problem, job.software.attention)
        if not model.window:
            return whole
        slid = self._kernels.attention(
            replace(problem, window=model.window), job.software.attention
        )
        # Half of the layers have it.
        return Direction((whole.forward + slid.forward) / 2, (whole.backward + slid.backward) / 2)

    def ends(self) -> Direction:
        """Return the time of the embedding, the logits and the loss."""
        job, model, kernels = self._job, self._job.model, self._kernels
        words = model.vocabulary // job.tp
        precision = "bf16"
        product = kernels.product
        forward = product(job.tokens, words, model.hidden, precision)
        backward = product(job.tokens, model.hidden, words, precision)
        if not job.frozen:
            backward += product(words, model.hidden, job.tokens, precision)
        loss = kernels.stream(_LOSS_BYTES * job.tokens * words)
        return Direction(forward + loss / 2, backward + loss / 2)

    def update(self, parameters: float) -> float:
        """Return the time of the optimizer's step for so many parameters of a rank."""
        return self._kernels.stream(_UPDATE_BYTES * parameters)
