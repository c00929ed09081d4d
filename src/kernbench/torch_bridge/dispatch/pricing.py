"""Times and shapes of operations, by the precision of float32 products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernbench.torch_bridge.base.direct import KnownCall
from kernbench.torch_bridge.costs import OperationCosts
from kernbench.torch_bridge.dispatch.shapes import Shapes


@dataclass(frozen=True, slots=True)
class Pricing:
    """Times and shapes of operations for one setting of the precision of float32 products."""

    costs: OperationCosts
    known_calls: dict[Any, KnownCall]
    """Calls of plain operations, by what determines their time."""
    shapes: Shapes | None
    """Shapes of results, with the times of calls; None in a run with data."""
