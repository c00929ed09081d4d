"""A layer's time on one rank: products, attention and streams, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from kernbench.accuracy.validation.predictors.clusters.jobs import ClusterJob, NotDescribedError
from kernbench.accuracy.validation.predictors.libraries.products import OPERANDS, gemm_kernel
from kernbench.hardware import Machine, load_library
from kernbench.library_kernels import (
    AttentionProblem,
    GemmProblem,
    Product,
    attention_kernels,
    fastest,
    flash_backward_launches,
    flash_launches,
    product_choices,
    product_kernels,
    time_kernel,
)

_NARROW = {"fp8": "trtllm_fp8_torch_flow", "nvfp4": "trtllm_nvfp4_torch_flow"}
"""By precision, the kernels of the vendor's library as a stack with nothing around them calls."""
_CAST_BYTES = {"bf16": 0.0, "fp8": 4.0, "nvfp4": 3.1}
"""Of an element that a product takes in another precision: read, and written twice, of which one
is transposed."""
_SCALE_BYTES = 2
_FORWARD_KERNELS, _BACKWARD_KERNELS = 14, 26
_MAIN_GRADIENT = 8
"""Bytes of an element of a weight's gradient that is added to the one of earlier microbatches."""
_UPDATE_BYTES = 30
"""Of a parameter in Adam: weight, gradient and two moments in float32, and the weight of 16 bits.
"""
_SCORES_FORWARD, _SCORES_BACKWARD = 3, 3
"""How often scores of 16 bits are moved beside products: read and written by a fused softmax, and
once more with what it keeps; its gradient reads two and writes one."""
_LOSS_BYTES = 20
"""Of a logit: read for the loss in 32 bits, and its gradient."""


@dataclass(frozen=True, slots=True)
class Direction:
    """Microseconds forward and backward."""

    forward: float
    backward: float

    def __add__(self, other: Direction) -> Direction:
        return Direction(self.forward + other.forward, self.backward + other.backward)


class Kernels:
    """Times of single kernels on one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._sip = machine.sip
        architecture = machine.spec.kernel_library
        self._library = None if architecture is None else load_library(architecture)
        self.product = lru_cache(maxsize=4096)(self._product)
        self.attention = lru_cache(maxsize=1024)(self._attention)

    def stream(self, moved_bytes: float) -> float:
        """Return the time of moving bytes from and to memory."""
        return moved_bytes / (float(self._sip.hbm_gbps) * 1e3)

    def _product(self, m: int, n: int, k: int, precision: str, batch: int = 1) -> float:
        library = self._library
        if library is None:
            return self._plain(2.0 * batch * m * n * k, batch * 2.0 * (m * k + k * n + m * n))
        has_own = "blas_bf16" in library.names()
        if precision == "bf16" and not has_own:
            product = Product(m=m, n=n, k=k, batch=batch)
            return product_kernels(product, self._sip, library).total_us
        name = "blas_bf16" if precision == "bf16" else _NARROW[precision]
        if name not in library.names():
            raise NotDescribedError(f"{library.architecture} has no products of {precision}")
        operands = OPERANDS[precision]
        kernel = gemm_kernel(name, precision, library.architecture, (m, n))
        problem = GemmProblem(
            m=m, n=n, k=k, batch=batch, dtype=operands.dtype,
            input_bytes=operands.input_bytes, weight_bytes=operands.weight_bytes,
        )  # fmt: skip
        return fastest(product_choices(problem, kernel), self._sip, library).total_us

    def _plain(self, flops: float, moved_bytes: float) -> float:
        """Return the longer of arithmetic and memory, where no library is described."""
        sip = self._sip
        rate = sip.gemm_flops_per_clock("bfloat16") * sip.num_pes * float(sip.clock_ghz) * 1e3
        share = float(sip.pe.gemm.efficiency or 1)
        return max(flops / (rate * share), self.stream(moved_bytes))

    def _attention(self, problem: AttentionProblem, whose: str) -> Direction:
        library = self._library
        if library is None:
            seen = 0.5 if problem.causal else 1.0
            width = problem.heads * problem.head_dim
            flops = 4.0 * seen * problem.batch * problem.q_len * problem.kv_len * width
            moved = 2.0 * problem.batch * (problem.q_len + problem.kv_len) * 2 * width
            return Direction(self._plain(flops, moved), self._plain(2.5 * flops, 2 * moved))
        known = attention_kernels(library.architecture)
        found = whose if f"{whose}_backward" in known else "flash2"
        if f"{found}_backward" not in known:
            raise NotDescribedError(f"{library.architecture} has no backward pass of attention")
        forward = flash_launches(problem, known[f"{found}_forward"], self._sip.num_pes)
        backward = flash_backward_launches(problem, known[f"{found}_backward"])
        took = [
            sum(time_kernel(one, self._sip, library.constants(one.name)).total_us for one in each)
            for each in (forward, backward)
        ]
        return Direction(*took)


class Layers:
    """The layers of one job."""

    def __init__(self, job: ClusterJob, kernels: Kernels) -> None:
        self._job = job
        self._kernels = kernels

    def linear(self, tokens: int, outputs: int, inputs: int, count: int = 1) -> Direction:
        """Return the time of a product with weights; ``count`` experts have tokens each."""
        job, kernels, precision = self._job, self._kernels, self._job.precision
        product = kernels.product
        forward = product(tokens, outputs, inputs, precision, count)
        backward = product(tokens, inputs, outputs, precision, count)
        cast = _CAST_BYTES[precision] * tokens * count
        of_weights = 0.0
        if job.software.dynamic_scales and cast:
            cast += _SCALE_BYTES * tokens * count
            of_weights = kernels.stream((_CAST_BYTES[precision] + _SCALE_BYTES) * outputs * inputs)
        if not job.frozen:
            backward += product(outputs, inputs, tokens, precision, count)
            backward += kernels.stream(_MAIN_GRADIENT * count * outputs * inputs)
        return Direction(
            forward + kernels.stream(cast * inputs) + of_weights,
            backward + kernels.stream(cast * outputs) + of_weights,
        )

    def layer(self) -> Direction:
        """Return the time of a layer without its exchanges, with what is done again."""
        job, model = self._job, self._job.model
        tokens, tp = job.tokens, job.tp
        products = [
            self.linear(tokens, self._queries // tp, model.hidden),
            self.linear(tokens, model.hidden, model.heads * model.head_dim // tp),
        ]
        wide = 2 if model.gated else 1
        if model.intermediate:
            products.append(self.linear(tokens, wide * model.intermediate // tp, model.hidden))
            products.append(self.linear(tokens, model.hidden, model.intermediate // tp))
        if model.experts:
            products.append(self._experts())
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
        inner = model.intermediate + model.top_k * model.expert_intermediate
        inside = 2.0 * tokens / job.tp * (inner * (wide + 1) + 2 * self._queries)
        inside *= software.streams_inside
        own = tokens / job.tp * model.hidden
        gaps = software.kernels_us
        return Direction(
            kernels.stream(software.streams_forward * own + inside) + gaps * _FORWARD_KERNELS,
            kernels.stream(software.streams_backward * own + 1.7 * inside)
            + gaps * _BACKWARD_KERNELS,
        )

    @property
    def _queries(self) -> int:
        """Columns of the product for queries, keys and values; of latent ones, as many numbers."""
        model = self._job.model
        if model.latent_weights:
            return model.latent_weights // model.hidden - model.heads * model.head_dim
        return (model.heads + 2 * model.kv_heads) * model.head_dim

    def _scores(self) -> Direction:
        job, model = self._job, self._job.model
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
            dtype="bfloat16",
            q_bytes=2,
            kv_bytes=2,
        )
        if job.software.sinks:
            return self._stored_scores(problem)
        return self._kernels.attention(problem, job.software.attention)

    def _stored_scores(self, problem: AttentionProblem) -> Direction:
        """Return the time of attention that writes its scores: products, mask and softmax."""
        kernels = self._kernels
        batch = problem.batch * problem.heads
        q, k, d = problem.q_len, problem.kv_len, problem.head_dim
        product = kernels.product
        forward = product(q, k, d, "bf16", batch) + product(q, d, k, "bf16", batch)
        scores = 2.0 * batch * q * k
        return Direction(
            forward + kernels.stream(_SCORES_FORWARD * scores),
            2 * forward + kernels.stream(_SCORES_BACKWARD * scores),
        )

    def _experts(self) -> Direction:
        """Return the time of routed experts: rows copied to them and back, and their products."""
        job, model, kernels = self._job, self._job.model, self._kernels
        held = model.experts // job.ep
        own = job.tokens / job.tp
        rows = max(round(own * model.top_k / held), 1)
        wide = 2 if model.gated else 1
        found = self.linear(rows, wide * model.expert_intermediate, model.hidden, held)
        found += self.linear(rows, model.hidden, model.expert_intermediate, held)
        # To the order of experts, and back: read and written.
        moved = 2.0 * 2 * 2 * own * model.top_k * model.hidden
        router = kernels.stream(4.0 * own * (model.hidden + 4 * model.experts))
        return found + Direction(
            kernels.stream(moved) + router, 1.25 * kernels.stream(moved) + 2 * router
        )

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
