"""The software stacks that sources measured: how each runs a transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import log2
from typing import Any

from pydantic import field_validator

from kernbench.hardware import Machine, changed_machine
from validation.sources.tables import Entry, table


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """How a model was trained."""

    heads: int | None = None
    """Attention heads; the row's when None."""
    microbatch: int | None = None
    """Sequences of a microbatch; all of a replica's when None."""
    piece: int | None = None
    """Layers per piece of the interleaved schedule; a whole stage when None."""
    vocabulary: int = 51200


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A serving or training stack."""

    machine: Mapping[str, Any] = field(default_factory=dict)
    """Machine keys that it changes (dotted), with their values."""
    launch_us: float | None = None
    """Host time of a launch; the machine's when None."""
    collective_us: float = 0.0
    """Added to every collective: the skew of ranks, and costs that library benchmarks hide."""
    collective_us_per_doubling: float = 0.0
    """Added to every collective for each doubling of the ranks."""
    step_us: float = 0.0
    """Host time per generated token, including sampling."""
    request_us: float = 0.0
    """Host time per request."""
    keep_scores: bool = False
    """Whether attention over many tokens stores the matrix of scores."""
    decode_splits: int | None = None
    """Programs that share the keys of a decoded token; chosen by size when None."""
    microbatch_tokens: int | None = None
    """In a pipeline, batches are halved until they have at most this many tokens."""
    always_in_microbatches: bool = False
    """The same limit without a pipeline."""

    recompute: bool = False
    """Whether layers recompute their activations before backward."""
    sequence_parallel: bool = False
    """Whether tokens are split over the ranks between parallel regions (sequence parallelism)."""
    waits_for_sends: bool = False
    """Whether a pipeline stage waits until its output has reached the next stage."""
    overlapped_gradients: bool = False
    """Whether sums over replicas overlap the last backward, and gathers the next forward."""
    sharded_optimizer: bool = False
    """Whether each replica updates only its part of the parameters."""
    runs: Mapping[int, TrainingRun] = field(default_factory=dict)
    """How models were trained, by hidden size, if a source's rows do not say it."""
    run: TrainingRun | None = None
    """How all other models were trained."""

    def run_of(self, hidden: int) -> TrainingRun | None:
        """Return how a model of a hidden size was trained, None if it is not known."""
        return self.runs.get(hidden, self.run)

    def adapted(self, machine: Machine, ranks: int) -> Machine:
        """Return the machine as a group of ``ranks`` ranks under this stack sees it."""
        changes = dict(self.machine)
        if self.launch_us is not None:
            changes["sip.host_launch_us"] = self.launch_us
        library = machine.spec.collectives
        # A rank's host thread is out of step with the other ranks of its node.
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
        """Return into how many parts a batch is cut, given its sequences and the tokens of each."""
        if self.microbatch_tokens is None or (stages == 1 and not self.always_in_microbatches):
            return 1
        part = batch if batch % stages else batch // stages
        while part * tokens > self.microbatch_tokens and part % 2 == 0:
            part //= 2
        return batch // part


PLAIN = Stack()
"""The stack of unknown sources: the machine's own numbers."""


def _checked(kind: type[Any], value: Any, where: str) -> None:
    """Refuse what is no mapping, or has a key that a record has no field for."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must have keys and values")
    known = {known.name for known in fields(kind)}
    unknown = [key for key in value if key not in known]
    if unknown:
        raise ValueError(f"{where} has no key {unknown[0]!r}; it has {', '.join(sorted(known))}")


class OfSource(Entry):
    """The stack of a source."""

    how: Stack

    @field_validator("how", mode="before")
    @classmethod
    def _has_known_keys(cls, how: Any) -> Any:
        _checked(Stack, how, "how")
        runs = how.get("runs", {})
        for run in (*(runs.values() if isinstance(runs, Mapping) else ()), how.get("run", {})):
            _checked(TrainingRun, run, "a run")
        return how


STACKS: dict[str, Stack] = {
    source.source: source.how for source in table("stacks.yaml", "stacks", OfSource)
}


def stack_of(source: str) -> Stack:
    """Return the stack that a source measured; a plain one for an unknown source."""
    return STACKS.get(source, PLAIN)
