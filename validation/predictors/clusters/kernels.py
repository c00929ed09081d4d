"""Times of single kernels of a machine, and of products with weights in both passes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

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
from validation.predictors.clusters.jobs import ClusterJob, NotDescribedError
from validation.predictors.libraries.products import OPERANDS, gemm_kernel

_NARROW = {"fp8": "trtllm_fp8_torch_flow", "nvfp4": "trtllm_nvfp4_torch_flow"}
"""By precision, the kernels of the vendor's library as a stack with nothing around them calls."""
_CAST_BYTES = {"bf16": 0.0, "fp8": 4.0, "nvfp4": 3.1}
"""Of an element that a product takes in another precision: read, and written twice, of which one
is transposed."""
_SCALE_BYTES = 2
_MAIN_GRADIENT = 8
"""Bytes of an element of a weight's gradient that is added to the one of earlier microbatches."""


@dataclass(frozen=True, slots=True)
class Direction:
    """Microseconds forward and backward."""

    forward: float
    backward: float

    def __add__(self, other: Direction) -> Direction:
        return Direction(self.forward + other.forward, self.backward + other.backward)


class Kernels:
    """Times of single kernels on one machine.

    ``of_16_bits`` is the machine at the clock of products of 16 bits, attention's among them, where
    those of 8 bits have another (docs/model/clusters.md).
    """

    def __init__(self, machine: Machine, of_16_bits: Machine | None = None) -> None:
        self.machine = machine
        self._of_16_bits = (of_16_bits or machine).sip
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
        sip = self._of_16_bits if precision == "bf16" else self._sip
        if library is None:
            return self._plain(2.0 * batch * m * n * k, batch * 2.0 * (m * k + k * n + m * n))
        has_own = "blas_bf16" in library.names()
        if precision == "bf16" and not has_own:
            product = Product(m=m, n=n, k=k, batch=batch)
            return product_kernels(product, sip, library).total_us
        name = "blas_bf16" if precision == "bf16" else _NARROW[precision]
        if name not in library.names():
            raise NotDescribedError(f"{library.architecture} has no products of {precision}")
        operands = OPERANDS[precision]
        kernel = gemm_kernel(name, precision, library.architecture, (m, n))
        problem = GemmProblem(
            m=m, n=n, k=k, batch=batch, dtype=operands.dtype,
            input_bytes=operands.input_bytes, weight_bytes=operands.weight_bytes,
        )  # fmt: skip
        return fastest(product_choices(problem, kernel), sip, library).total_us

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
        sip = self._sip if problem.q_bytes == 1 else self._of_16_bits
        forward = flash_launches(problem, known[f"{found}_forward"], sip.num_pes)
        backward = flash_backward_launches(problem, known[f"{found}_backward"])
        took = [
            sum(time_kernel(one, sip, library.constants(one.name)).total_us for one in each)
            for each in (forward, backward)
        ]
        return Direction(*took)


def linear(
    job: ClusterJob,
    kernels: Kernels,
    tokens: int,
    outputs: int,
    inputs: int,
    count: int = 1,
    converts: tuple[bool, bool] = (True, True),
) -> Direction:
    """Return the time of a product with weights; ``count`` experts have tokens each.

    ``converts`` says whether a kernel of its own converts the input, and the result's gradient.
    """
    precision, software = job.precision, job.software
    product = kernels.product
    forward = product(tokens, outputs, inputs, precision, count)
    backward = product(tokens, inputs, outputs, precision, count)
    each = _CAST_BYTES[precision] / software.cast_share
    of_weights = 0.0
    if software.dynamic_scales and each:
        each += _SCALE_BYTES / software.cast_share
        of_weights = kernels.stream(each * outputs * inputs)
    cast = each * tokens * count
    if not job.frozen:
        backward += product(outputs, inputs, tokens, precision, count)
        backward += kernels.stream(_MAIN_GRADIENT * count * outputs * inputs)
    return Direction(
        forward + converts[0] * kernels.stream(cast * inputs) + of_weights,
        backward + converts[1] * kernels.stream(cast * outputs) + of_weights,
    )
