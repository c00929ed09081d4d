"""How the software that a source measured runs a transformer: what belongs to it, not to a machine.

Each number that was fitted is named here beside the rows that it was fitted to; the others are what
the stack's documentation or source says.
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

    name: str
    machine: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the machine that it changes (dotted), with their values."""
    launch_us: float | None = None
    """Host time of a launch; the machine's when None."""
    collective_us: float = 0.0
    """Added to every collective: skew of the ranks and what the library does not show alone."""
    collective_us_per_doubling: float = 0.0
    """The same for every doubling of the ranks of a node."""
    collective_share: float = 1.0
    """Bandwidth of its collectives beside that of the machine's library."""
    step_us: float = 0.0
    """Host time of a generated token, sampling included."""
    request_us: float = 0.0
    """Host time of a request."""
    keep_scores: bool = False
    """Attention over many tokens stores the matrix of scores."""
    decode_splits: int | None = None
    """Programs that share the keys of a decoded token; by size when None."""
    microbatch_tokens: int | None = None
    """A batch is halved until its tokens are no more than this."""

    def adapted(self, machine: Machine, ranks_in_node: int) -> Machine:
        """Return the machine as this stack meets it."""
        changes = dict(self.machine)
        if self.launch_us is not None:
            changes["sip.host_launch_us"] = self.launch_us
        library = machine.spec.collectives
        if library is not None and self._changes_collectives:
            for group in ("protocols", "point_to_point"):
                for name, protocol in (getattr(library, group) or {}).items():
                    key = f"collectives.{group}.{name}"
                    changes |= self._changed(key, protocol, ranks_in_node)
            if library.in_switch is not None:
                key = "collectives.in_switch"
                changes |= self._changed(key, library.in_switch, ranks_in_node)
        return changed_machine(machine, changes) if changes else machine

    @property
    def _changes_collectives(self) -> bool:
        added = self.collective_us or self.collective_us_per_doubling
        return bool(added) or self.collective_share != 1.0

    def _changed(self, key: str, protocol: Any, ranks: int) -> dict[str, float]:
        added_us = self.collective_us + self.collective_us_per_doubling * log2(ranks)
        return {
            f"{key}.launch_us": float(protocol.launch_us) + added_us,
            f"{key}.bandwidth_share": float(protocol.bandwidth_share) * self.collective_share,
        }
