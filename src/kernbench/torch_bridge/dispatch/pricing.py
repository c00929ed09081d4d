"""What is known of operations: their times and shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernbench.torch_bridge.base.direct import KnownCall
from kernbench.torch_bridge.costs import OperationCosts
from kernbench.torch_bridge.dispatch.shapes import Shapes


@dataclass(frozen=True, slots=True)
class Pricing:
    """What is known of operations where this is asked of products of float32."""

    costs: OperationCosts
    known_calls: dict[Any, KnownCall]
    """Calls of plain operations, by what decides their time."""
    shapes: Shapes | None
    """Their shapes, with the times of calls; None in a run with data."""
