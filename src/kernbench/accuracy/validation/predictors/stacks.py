"""How the software that a source measured runs a transformer: what belongs to it, not to a machine.

A number that was fitted is named here, with the rows that it was fitted to; the others are what
the stack's documentation or source says. ``STACKS`` is the whole list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log2
from typing import Any

from kernbench.hardware import Machine, changed_machine


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """How a model was trained."""

    heads: int | None = None
    """Attention heads; the row's when None."""
    microbatch: int | None = None
    """Sequences that go through a stage together; all of a copy's when None."""
    piece: int | None = None
    """Layers of a piece of the interleaved schedule; a whole stage when None."""
    vocabulary: int = 51200


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A serving or training stack."""

    machine: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the machine that it changes (dotted), with their values."""
    launch_us: float | None = None
    """Host time of a launch; the machine's when None."""
    collective_us: float = 0.0
    """Added to every collective: the skew of the ranks and what a library's own bench hides."""
    collective_us_per_doubling: float = 0.0
    """The same for every doubling of the ranks."""
    step_us: float = 0.0
    """Host time of a generated token, with the sampling."""
    request_us: float = 0.0
    """Host time of a request."""
    keep_scores: bool = False
    """Attention over many tokens stores the matrix of scores."""
    decode_splits: int | None = None
    """Programs that share the keys of a decoded token; by size when None."""
    microbatch_tokens: int | None = None
    """In a pipeline a batch is halved until it has no more tokens than this."""
    always_in_microbatches: bool = False
    """The same without a pipeline."""

    recompute: bool = False
    """Training keeps no activations inside a layer: its forward is done again before backward."""
    sequence_parallel: bool = False
    """Between the parallel regions the tokens are split over the ranks."""
    waits_for_sends: bool = False
    """A stage of a pipeline does nothing while what it computed goes to the next."""
    overlapped_gradients: bool = False
    """Copies of a model sum gradients beside the last backward, and spread them in a forward."""
    sharded_optimizer: bool = False
    """Each copy of a model updates its part of the parameters."""
    runs: Mapping[int, TrainingRun] = field(default_factory=dict)
    """How models were trained, by hidden size, where a source's rows do not say it."""
    run: TrainingRun | None = None
    """The same for all other models."""

    def run_of(self, hidden: int) -> TrainingRun | None:
        """Return how a model of a hidden size was trained, None if nothing says it."""
        return self.runs.get(hidden, self.run)

    def adapted(self, machine: Machine, ranks: int) -> Machine:
        """Return the machine, with room for ``ranks``, as groups of so many meet it."""
        changes = dict(self.machine)
        if self.launch_us is not None:
            changes["sip.host_launch_us"] = self.launch_us
        library = machine.spec.collectives
        # Ranks of a node are what a rank's host thread is out of step with.
        links = machine.spec.links
        node = 0 if links is None or links.scale_out is None else links.scale_out.sips_per_node
        together = min(ranks, node) if node else ranks
        added_us = self.collective_us + self.collective_us_per_doubling * log2(together)
        if library is not None and added_us:
            for group in ("protocols", "point_to_point"):
                for name, protocol in (getattr(library, group) or {}).items():
                    key = f"collectives.{group}.{name}.launch_us"
                    changes[key] = round(float(protocol.launch_us) + added_us, 6)
            if library.in_switch is not None:
                launch_us = round(float(library.in_switch.launch_us) + added_us, 6)
                changes["collectives.in_switch.launch_us"] = launch_us
        return changed_machine(machine, changes) if changes else machine

    def microbatches(self, batch: int, tokens: int, stages: int) -> int:
        """Return into how many parts a batch of sequences is cut, each so many tokens long."""
        if self.microbatch_tokens is None or (stages == 1 and not self.always_in_microbatches):
            return 1
        part = batch if batch % stages else batch // stages
        while part * tokens > self.microbatch_tokens and part % 2 == 0:
            part //= 2
        return batch // part


PLAIN = Stack()
"""For sources of which nothing is known: the machine's own numbers."""

# FasterTransformer. Source: NVIDIA/FasterTransformer, docs/gpt_guide.md and docs/bert_guide.md,
# src/fastertransformer/utils/nccl_utils.cc (getLocalBatchSize, of the releases of the two tables).
_FASTER_TRANSFORMER: Mapping[str, Any] = {"keep_scores": True, "decode_splits": 1}
# Fitted to rows of 1 to 8 sequences: three numbers, and one of the rows of GPT-89B.
_ENCODER: Mapping[str, Any] = {"collective_us": 8.0, "collective_us_per_doubling": 10.0}
_GENERATION: Mapping[str, Any] = {"collective_us": 26.0, "collective_us_per_doubling": 8.0}

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
    # Processes of an eager framework are not in step. Fitted: one number.
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
    """Return the stack that a source measured; a plain one for a source that is not known."""
    return STACKS.get(source, PLAIN)
