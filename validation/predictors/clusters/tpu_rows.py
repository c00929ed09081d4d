"""Runs of MaxText on TPUs."""

from __future__ import annotations

import re
from dataclasses import replace

from kernbench.accuracy.rows import Row
from kernbench.plans import ModelShape
from validation.predictors.clusters.jobs import (
    ClusterJob,
    NotDescribedError,
    Software,
)
from validation.predictors.clusters.models import llama

_XLA = Software(kernels_us=0.0, gradient_bytes=4)
_NAMED = re.compile(r"(\d+)B")

# Source: AI-Hypercomputer/maxtext @e591f30, configs/tpu/*/*.sh and configs/base.yml;
# global_parameter_scale doubles layers, widths and heads in turn (utils of its configuration).
_SIZES = {
    ("TPU-v4", 22): (6144, 48, 24, 24576),
    ("TPU-v4", 52): (12288, 32, 32, 49152),
    **{
        (device, scale): sizes
        for device in ("TPU-v5e", "TPU-v5p")
        for scale, sizes in {
            16: (4096, 32, 64, 28672),
            64: (8192, 64, 64, 28672),
            128: (8192, 64, 128, 57344),
            512: (16384, 128, 128, 57344),
            1024: (16384, 128, 256, 114688),
        }.items()
    },
}
"""By device and billions of parameters: hidden, layers, heads, and the width of the MLP."""
_RUNS = {
    ("TPU-v4", 22): (13, 1, "early"),
    ("TPU-v4", 52): (7, 1, "early"),
    ("TPU-v5e", 16): (6, 1, "early"),
    ("TPU-v5e", 64): (2, 1, "early"),
    ("TPU-v5e", 128): (1, 16, "early"),
    ("TPU-v5p", 64): (3, 4, "none"),
    ("TPU-v5p", 128): (1, 8, "none"),
    ("TPU-v5p", 512): (2, 8, "early"),
    ("TPU-v5p", 1024): (2, 16, "early"),
}
"""Sequences per chip, TP, and what is recomputed."""


def maxtext(row: Row) -> ClusterJob:
    """Read a row of MaxText: weights are sharded over a slice, slices are replicas.

    Raises:
        NotDescribedError: No configuration of the model is known.
    """
    named = _NAMED.search(row.fields["model"])
    key = row.device, int(named.group(1)) if named else 0
    if key not in _RUNS:
        raise NotDescribedError(f"no configuration of {row.fields['model']} is described")
    micro, tp, recompute = _RUNS[key]
    hidden, layers, heads, width = _SIZES[key]
    slices, devices = row.integer("dp"), row.integer("n_ranks")
    of_slice = devices // slices
    model = llama(row.fields["model"], hidden, layers, heads, width, 32000, heads)
    return ClusterJob(
        model=_with_heads_of_128(model),
        software=_XLA,
        devices=devices,
        seq=2048,
        batch=micro * devices,
        microbatch=micro * tp,
        tp=tp,
        shard=of_slice // tp,
        recompute=recompute,
    )


def _with_heads_of_128(model: ModelShape) -> ModelShape:
    return replace(model, head_dim=128)
