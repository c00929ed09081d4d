"""What a source repeats until the clock has settled, if that is more than the row's kernel.

A machine's ``sustained.half_time_us`` is for a loop over one kernel. A source that repeats a layer,
and takes kernel times from a trace, sees the clock that the whole layer settles at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

from kernbench.accuracy.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The products of a transformer layer, by the columns that tensor parallelism splits."""

    hidden: int
    heads: int
    """The columns of queries, keys and values together."""
    inner: int
    """The columns between the two products of the MLP."""
    gated: bool = True

    def products(self, ranks: int) -> dict[str, tuple[int, int]]:
        """Return N and K of each product on one of ``ranks`` ranks, by Vidur's names."""
        up = self.inner * (2 if self.gated else 1)
        return {
            "attn_pre_proj": (self.heads // ranks, self.hidden),
            "attn_post_proj": (self.hidden, self.hidden // ranks),
            "mlp_up_proj": (up // ranks, self.hidden),
            "mlp_down_proj": (self.hidden, self.inner // ranks),
        }


# Source: microsoft/vidur, data/model_configs (phi-2, Llama-2-7B, Meta-Llama-3-8B, InternLM-20B,
# CodeLlama-34B, Llama-2-70B, Qwen-72B).
LAYERS: Mapping[str, tuple[Layer, ...]] = {
    "vidur-mlp": (
        Layer(hidden=2560, heads=7680, inner=10240, gated=False),
        Layer(hidden=4096, heads=12288, inner=11008),
        Layer(hidden=4096, heads=6144, inner=14336),
        Layer(hidden=5120, heads=15360, inner=13824),
        Layer(hidden=8192, heads=10240, inner=22016),
        Layer(hidden=8192, heads=10240, inner=28672),
        Layer(hidden=8192, heads=24576, inner=24576),
    )
}

_PART = re.compile(r"\((\w+), tp(\d+)\)")


def repeated_kernels(row: Row) -> float:
    """Return the length of what a source repeated, as a multiple of the row's kernel.

    It is proportional to the weights, and the mean over models that have such a product; 1 if the
    source or the product is not known.
    """
    result = _PART.search(row.fields.get("impl", ""))
    if result is None:
        return 1.0
    name, ranks = result[1], int(result[2])
    shape = row.integer("n"), row.integer("k")
    counts = list(_counts(LAYERS.get(row.source, ()), name, ranks, shape))
    return fmean(counts) if counts else 1.0


def _counts(
    layers: tuple[Layer, ...], name: str, ranks: int, shape: tuple[int, int]
) -> Iterator[float]:
    for layer in layers:
        products = layer.products(ranks)
        if products.get(name) == shape:
            yield sum(n * k for n, k in products.values()) / (shape[0] * shape[1])
