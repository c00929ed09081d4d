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

    def adapted(self, machine: Machine, ranks: int) -> Machine:
        """Return the machine, with room for ``ranks``, as groups of so many meet it."""
        changes = dict(self.machine)
        if self.launch_us is not None:
            changes["sip.host_launch_us"] = self.launch_us
        library = machine.spec.collectives
        added_us = self.collective_us + self.collective_us_per_doubling * log2(ranks)
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
_FASTER_TRANSFORMER: Mapping[str, Any] = {
    "keep_scores": True,
    "decode_splits": 1,
    "collective_us": 8.0,
    "collective_us_per_doubling": 10.0,
}

STACKS: dict[str, Stack] = {
    "ft-gpt20b": Stack(microbatch_tokens=2048, always_in_microbatches=True, **_FASTER_TRANSFORMER),
    "ft-530b": Stack(microbatch_tokens=2048, always_in_microbatches=True, **_FASTER_TRANSFORMER),
    "ft-gpt89b": Stack(microbatch_tokens=2048, always_in_microbatches=True, **_FASTER_TRANSFORMER),
    "ft-bert6b": Stack(microbatch_tokens=1024, **_FASTER_TRANSFORMER),
}


def stack_of(source: str) -> Stack:
    """Return the stack that a source measured; a plain one for a source that is not known."""
    return STACKS.get(source, PLAIN)
