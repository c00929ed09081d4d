"""How each source measured: what its measurements add to a kernel's own time.

A time under graph replay is the kernel's. An eager framework adds the host, which prepares the next
launch while the device works: a row takes the longer of the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from kernbench.hardware import Machine, SipSpec, changed_machine
from kernbench.kernel_time import kept_share, nearest_step, still_there

# PyTorch's softmax keeps rows up to this long in registers.
_ONE_PASS_ELEMENTS = 1024


@dataclass(frozen=True, slots=True)
class Harness:
    """What a source's way of measuring adds to a kernel, in microseconds."""

    host_us: float = 0.0
    """The least time of a row: one launch through the framework."""
    fixed_us: float = 0.0
    """Added to every kernel: what does not overlap the host's work."""
    weight_buffers: int = 0
    """How many weights are used in turn; warm if the cache holds them all. 0: always cold."""

    row_kib: float = 0.0
    """For kernels that read rows once per pass: the longest row that later passes find cached."""

    rate_share: float = 1.0
    """The speed of the measured kernel relative to ours: below 1 if its accesses are not wide."""
    block_waste: float = 0.0
    """For softmax by blocks of threads: the cost of an incomplete last round over a row."""

    only_powers_of_two: bool = False
    """For GEMMs: whether the library has only tiles of these widths, whatever the machine has."""

    keeps_clock: bool = False
    """Whether the source runs so little at a time that the clock does not throttle."""

    def met(self, machine: Machine, repeated: float = 1.0) -> Machine:
        """Return the machine as the source's kernels see it.

        ``repeated`` is the length of what the source repeats, as a multiple of the kernel's.
        """
        sustained = machine.sip.sustained
        if sustained is None or (repeated == 1 and not self.keeps_clock):
            return machine
        if self.keeps_clock:
            return changed_machine(machine, {"sip.sustained": None})
        half_us = round(float(sustained.half_time_us) / repeated, 3)
        return changed_machine(machine, {"sip.sustained.half_time_us": half_us})

    def time_us(self, kernel_us: float, row_elements: int = 0) -> float:
        """Return the time that the source reports for a kernel on rows of this many elements."""
        kernel_us /= self.rate_share
        if self.block_waste and row_elements > _ONE_PASS_ELEMENTS:
            threads = min(1024, 1 << ((row_elements // 4).bit_length() - 1))
            rounds = row_elements / (4 * threads)
            kernel_us *= 1 + self.block_waste * (math.ceil(rounds) / rounds - 1)
        return max(self.host_us, self.fixed_us + kernel_us)

    def cached(
        self, input_bytes: int, weight_bytes: int, sip: SipSpec
    ) -> tuple[tuple[int, Fraction], ...]:
        """Return the shares of a GEMM's input (0) and weights (1) that are still cached.

        Of weights it is what is left at their next turn; the input, which every launch reads, is
        cached if it fits together with all weights in rotation.
        """
        if not self.weight_buffers or sip.cache is None:
            return ()
        rotated = self.weight_buffers * weight_bytes
        warm = nearest_step(kept_share(rotated, sip.cache))
        fits = kept_share(input_bytes + rotated, sip.cache) == 1
        shares = ((0, Fraction(fits)), (1, warm))
        return tuple((param, found) for param, found in shares if found)

    def warm_row(self, row_bytes: int) -> Fraction:
        """Return the share of a row that later passes find cached: 1 if short, 0 if long."""
        rows_held = Fraction(row_bytes / (self.row_kib * 1024)).limit_denominator(4096)
        return nearest_step(still_there(rows_held))


_KERNEL = Harness()

# GEMM, by source and machine ("" for all). Kernel clocks and graph replay need nothing; eager rows
# carry the launch that the source itself states or that its smallest rows show.
GEMM: dict[tuple[str, str], Harness] = {
    ("aic-gemm", ""): Harness(weight_buffers=6),
    ("aic-gemm-2", ""): Harness(weight_buffers=6),
    ("llmcompass-fig5ab", "a100-sxm-80g"): Harness(fixed_us=18, keeps_clock=True),
    ("llmcompass-fig5ab", "mi210"): Harness(fixed_us=31, keeps_clock=True),
    ("llmcompass-fig5ijkl", "a100-sxm-80g"): Harness(fixed_us=18, keeps_clock=True),
    ("neusight-linear", ""): Harness(host_us=45, fixed_us=10),
    # PyTorch 2.3 with CUDA 12.1, whose cuBLAS has sm90_xmma kernels, all of them 64, 128 or 256
    # wide. Source: microsoft/vidur, docs/profiling.md; microsoft/sarathi-serve, requirements.txt.
    ("vidur-mlp", "h100-sxm"): Harness(only_powers_of_two=True),
    ("neusight-linear-amd", ""): Harness(host_us=35, fixed_us=10),
}

# Memory-bound operations, by source and machine, then by op ("" for all others). Sources that time
# an eager framework with events see a floor (host_us) and a part that nothing hides (fixed_us).
MEMBOUND: dict[tuple[str, str], dict[str, Harness]] = {
    ("neusight-vec", "a100-sxm-40g"): {
        "": Harness(host_us=27, fixed_us=11),
        "gelu": Harness(host_us=30, fixed_us=11),
        "layernorm": Harness(host_us=47, fixed_us=40, row_kib=9.2),
        "softmax": Harness(host_us=33, fixed_us=27, row_kib=33, block_waste=0.45),
    },
    ("neusight-vec", "a100-pcie-80g"): {
        "": Harness(fixed_us=13),
        "layernorm": Harness(fixed_us=43, row_kib=9.2),
        "softmax": Harness(fixed_us=44, row_kib=33, block_waste=0.45),
    },
    ("neusight-vec", "v100"): {
        "": Harness(host_us=33, fixed_us=13),
        "gelu": Harness(host_us=38, fixed_us=13),
        "layernorm": Harness(host_us=59, fixed_us=36, row_kib=2.7),
        "softmax": Harness(host_us=41, fixed_us=26, row_kib=19, block_waste=0.46),
    },
    ("neusight-vec", "l4"): {
        "": Harness(fixed_us=12),
        "layernorm": Harness(fixed_us=12, row_kib=27),
        "softmax": Harness(fixed_us=12, row_kib=67),
    },
    ("neusight-vec-amd", "mi100"): {
        "": Harness(host_us=17, fixed_us=12),
        "gelu": Harness(host_us=19, fixed_us=12),
        "layernorm": Harness(host_us=29, fixed_us=25, row_kib=4.3),
        "softmax": Harness(host_us=18, fixed_us=19, row_kib=28, block_waste=1.3),
    },
    ("neusight-vec-amd", "mi210"): {
        "": Harness(host_us=3, fixed_us=10),
        "gelu": Harness(host_us=2, fixed_us=10),
        "layernorm": Harness(host_us=16, fixed_us=19, row_kib=4.3),
        "softmax": Harness(host_us=21, fixed_us=17, row_kib=28, block_waste=2.3),
    },
    ("llmcompass-fig5g", "a100-sxm-80g"): {"": Harness(host_us=45, fixed_us=40)},
    ("llmcompass-fig5g", "mi210"): {"": Harness(host_us=21, fixed_us=18)},
    ("llmcompass-fig5cdef", "a100-sxm-80g"): {
        "": Harness(host_us=12, fixed_us=10, row_kib=33),
        "layernorm": Harness(host_us=53, fixed_us=38, row_kib=9.2),
    },
    ("llmcompass-fig5cdef", "mi210"): {
        "": Harness(host_us=22, fixed_us=19, row_kib=28),
        "layernorm": Harness(host_us=28, fixed_us=25, row_kib=4.3),
    },
    ("llmcompass-fig5ijkl", "a100-sxm-80g"): {
        "gelu": Harness(host_us=45, fixed_us=40),
        "softmax": Harness(host_us=12, fixed_us=10, row_kib=33),
        "layernorm": Harness(host_us=53, fixed_us=38, row_kib=9.2),
    },
    ("vidur-mlp", "a100-sxm-80g"): {
        "silu_mul": Harness(rate_share=0.6),
        "rmsnorm": Harness(rate_share=0.41),
    },
    ("vidur-mlp", "h100-sxm"): {
        "silu_mul": Harness(rate_share=0.6),
        "rmsnorm": Harness(rate_share=0.39),
    },
}


def membound_harness(source: str, machine: str, op: str) -> Harness:
    """Return how a source measured an operation; kernel time for an unknown source."""
    ops = MEMBOUND.get((source, machine), {})
    return ops.get(op) or ops.get("") or _KERNEL


# Rows of vLLM's MLA that were measured without a graph, by operation and kernel: launches take at
# least that. Medians of rows of few keys and heads.
MLA_HOSTS = {
    ("context_mla", "vllm_flash_attn_mla"): 160.0,
    ("context_mla", "vllm_flashmla"): 210.0,
    ("context_mla", "vllm_triton_mla"): 293.0,
    ("generation_mla", "vllm_flash_attn_mla"): 160.0,
    ("generation_mla", "vllm_flashmla"): 208.0,
    ("generation_mla", "vllm_triton_mla"): 340.0,
}
# What the host takes for a module of SGLang's MLA on a prompt without a graph, by machine.
# Medians of rows of fewer than 1024 tokens.
MLA_MODULE_HOSTS = {"b200": 535.0, "gb200": 948.0, "h100-sxm": 650.0, "h200": 639.0}
# What the host adds to vLLM's three convolutions of KDA, by machine: launches wait for it and for
# each other. Medians of rows of fewer than 600 tokens, less the 20 us that devices take.
KDA_CONVOLUTION_HOSTS = {
    "b200": 440.0, "gb200": 1440.0, "h100-sxm": 455.0, "h200": 820.0, "l40s": 780.0,
    "rtx-pro-6000": 440.0,
}  # fmt: skip

# What the host takes in vLLM's release whose convolution of a gated delta net listed the chunks of
# all sequences on the host: at least, per sequence, per token. By hand, to rows of two releases.
CHUNK_LIST_HOSTS = {
    "b200": (214.0, 1.5, 0.031), "gb200": (500.0, 1.5, 0.033), "h200": (235.0, 1.5, 0.044),
    "": (235.0, 1.5, 0.035),
}  # fmt: skip


def gemm_harness(source: str, machine: str) -> Harness:
    """Return how a source measured GEMMs; kernel time for an unknown source."""
    return GEMM.get((source, machine)) or GEMM.get((source, "")) or _KERNEL


# Collectives whose kernel was timed on one rank while another process launched it later: a row
# takes at least that. By hand, to messages below 1 MiB of two and four ranks.
SKEWS = {("vidur-net", "all_reduce"): 40.0}


def skew_us(source: str, op: str) -> float:
    """Return the least time of a source's collective; 0 where ranks entered together."""
    return SKEWS.get((source, op), 0.0)
