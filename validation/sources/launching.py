"""How a serving stack launched the products of a source's rows: in a graph, or from Python.

A row is the median over the releases of a stack that the source measured. Where some of them were
launched by Python, one by one, and the others by a graph, the median lies between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_ALIGNED_ROWS = 4
"""Scales of 4 bytes are read in units of 16."""
_BLOCK = 128
"""Elements of K that share a scale; one column of scales needs no layout."""


@dataclass(frozen=True, slots=True)
class Launching:
    """How a stack launched a kernel on a machine, in microseconds."""

    host_us: float = 0.0
    """The time in which Python launches one product; 0 in a graph."""
    share: float = 1.0
    """How much of what a graph would be faster the row shows: the weight in its median of releases
    that Python launched."""
    unaligned_us: float = 0.0
    """What more launches take that lay scales out anew where rows are no multiple of 4: of the host
    where Python launches them, else of the device."""

    added_us: float = 0.0
    """What the kernels of an older release in the median take longer."""

    def host_of(self, m: int, k: int) -> float:
        """Return the least time of a product of ``m`` rows."""
        return self.host_us + self._anew_us(m, k) if self.host_us else 0.0

    def device_of(self, m: int, k: int) -> float:
        """Return what is added to the product's own time."""
        return self.added_us + (0.0 if self.host_us else self._anew_us(m, k))

    def _anew_us(self, m: int, k: int) -> float:
        return self.unaligned_us if m % _ALIGNED_ROWS and k > _BLOCK else 0.0


_GRAPH = Launching()
_ANY = 0
"""Number of releases: for all others."""

# By (framework, dtype, kernel), then by machine and number of releases. Host times of one release
# are medians of rows of small products that fits may use; what several releases show was fitted
# with the kernels' constants.
_LAUNCHED: Mapping[tuple[str, str, str], Mapping[tuple[str, int], Launching]] = {
    ("vllm", "fp8_block", "CutlassFp8BlockScaledMMKernel"): {
        ("b200", _ANY): Launching(169),
        ("gb200", _ANY): Launching(302),
        ("h100-sxm", _ANY): Launching(182),
        ("h200", _ANY): Launching(184),
    },
    ("vllm", "fp8_block", "DeepGemmFp8BlockScaledMMKernel"): {
        ("b200", _ANY): Launching(180, unaligned_us=56),
        ("gb200", _ANY): Launching(310, unaligned_us=120),
        ("h100-sxm", _ANY): Launching(92),
        ("h200", _ANY): Launching(90),
    },
    ("vllm", "fp8_block", "FlashInferFp8BlockScaledMMKernel"): {
        ("h100-sxm", _ANY): Launching(60),
        ("h200", _ANY): Launching(59),
    },
    ("vllm", "fp8_block", "TritonFp8BlockScaledMMKernel"): {("l40s", _ANY): Launching(340)},
    ("vllm", "fp8_block", "vllm_default"): {
        ("b200", _ANY): Launching(187, 0.445),
        ("gb200", 2): Launching(678, 0.197),
        ("gb200", _ANY): Launching(264),
        ("h100-sxm", 2): Launching(unaligned_us=2.4, added_us=3.1),
        ("h100-sxm", _ANY): Launching(unaligned_us=2.4),
        ("h200", _ANY): Launching(171, 0.194),
        ("rtx-pro-6000", _ANY): Launching(135, 0.88),
    },
    ("vllm", "fp8", "vllm_default"): {("h100-sxm", 2): Launching(added_us=4.2)},
    ("sglang", "fp8_block", "sglang"): {
        ("b200", _ANY): Launching(unaligned_us=3.8),
        ("gb200", _ANY): Launching(unaligned_us=3.4),
        ("h100-sxm", _ANY): Launching(unaligned_us=0.65),
        ("h200", _ANY): Launching(unaligned_us=1.0),
    },
    ("sglang", "fp8_block", "sglang_deepgemm_gemm_nt_f8f8bf16"): {
        ("b200", _ANY): Launching(unaligned_us=3.6),
        ("gb200", _ANY): Launching(unaligned_us=0.45),
        ("h100-sxm", _ANY): Launching(unaligned_us=0.47),
        ("h200", _ANY): Launching(unaligned_us=0.33),
    },
    ("trtllm", "fp8_block", "deepgemm"): {
        ("b200", _ANY): Launching(unaligned_us=5.0),
        ("gb200", _ANY): Launching(unaligned_us=7.75),
    },
}


def launching(fields: Mapping[str, str], machine: str) -> Launching:
    """Return how a row's product was launched; in a graph where nothing else is known."""
    key = tuple(fields.get(each, "") for each in ("framework", "dtype", "kernel"))
    known = _LAUNCHED.get((key[0], key[1], key[2]), {})
    releases = int(fields.get("n_releases") or _ANY)
    return known.get((machine, releases)) or known.get((machine, _ANY)) or _GRAPH
