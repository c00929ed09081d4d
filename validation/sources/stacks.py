"""The software stacks that sources measured: how each runs a transformer.

Fitted numbers are marked, with the rows that they were fitted to; the others come from the stack's
documentation or source. ``STACKS`` is the whole list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernbench.plans import PLAIN, Stack, TrainingRun

# FasterTransformer. Source: NVIDIA/FasterTransformer, docs/gpt_guide.md and docs/bert_guide.md,
# src/fastertransformer/utils/nccl_utils.cc (getLocalBatchSize, of the releases of the two tables).
_FASTER_TRANSFORMER: Mapping[str, Any] = {"keep_scores": True, "decode_splits": 1}
# Fitted to rows of 1 to 8 sequences: three numbers, and one of the rows of GPT-89B. A generation's
# collectives, to rows of 1 to 256 sequences that are not kept apart.
_ENCODER: Mapping[str, Any] = {"collective_us": 8.0, "collective_us_per_doubling": 10.0}
_GENERATION: Mapping[str, Any] = {"collective_us": 30.0, "collective_us_per_doubling": 8.0}

# The runs of the table. Source: NVIDIA/Megatron-LM, examples/sc21/run_table_1.sh.
_MEGATRON_2021 = {
    2304: TrainingRun(heads=24, microbatch=16),
    3072: TrainingRun(heads=32, microbatch=16),
    4096: TrainingRun(heads=32, microbatch=16),
    6144: TrainingRun(heads=48, microbatch=8),
    8192: TrainingRun(heads=64, microbatch=4),
    10240: TrainingRun(heads=80, microbatch=2, piece=5),
    12288: TrainingRun(heads=96, microbatch=2, piece=5),
    16384: TrainingRun(heads=128, microbatch=1, piece=3),
    20480: TrainingRun(heads=128, microbatch=1, piece=1),
    25600: TrainingRun(heads=160, microbatch=1),
}

STACKS: dict[str, Stack] = {
    "ft-gpt20b": Stack(
        microbatch_tokens=2048, always_in_microbatches=True, **_FASTER_TRANSFORMER, **_GENERATION
    ),
    "ft-530b": Stack(
        microbatch_tokens=2048, always_in_microbatches=True, **_FASTER_TRANSFORMER, **_GENERATION
    ),
    "ft-gpt89b": Stack(
        microbatch_tokens=2048,
        always_in_microbatches=True,
        request_us=60000,
        **_FASTER_TRANSFORMER,
        **_GENERATION,
    ),
    "ft-bert6b": Stack(microbatch_tokens=1024, **_FASTER_TRANSFORMER, **_ENCODER),
    "megatron-readme-2021": Stack(
        keep_scores=True, recompute=True, waits_for_sends=True, runs=_MEGATRON_2021
    ),
    # Ranks of an eager framework are not in step. Fitted: one number.
    "mleng-net": Stack(collective_us=24.0),
    # One microbatch of all sequences ("pp4_1"): sitar-lab/NeuSight, scripts/asplos/label.
    "neusight-dist": Stack(keep_scores=True, run=TrainingRun()),
    # Assumed: the microbatch, which the source does not say. Source: README.md of the release.
    "megatron-core-2024": Stack(
        sequence_parallel=True,
        overlapped_gradients=True,
        sharded_optimizer=True,
        run=TrainingRun(microbatch=1, vocabulary=131072),
    ),
}


def stack_of(source: str) -> Stack:
    """Return the stack that a source measured; a plain one for an unknown source."""
    return STACKS.get(source, PLAIN)
