"""Replay that detects mistakes which a device would turn into wrong numbers (ADR-0020).

What checks is imported when it is first asked for: other runs need none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench.on_demand import asked_for
from kernbench.sanitizer.facts.lanes import first_common, strided_spans
from kernbench.sanitizer.facts.launch import Launched
from kernbench.sanitizer.facts.order import Clock
from kernbench.sanitizer.ordering.touches import (
    Touch,
    Touches,
    TouchKind,
    TouchPart,
    TraceTouches,
    record_touch,
)

if TYPE_CHECKING:
    from kernbench.sanitizer.run import Sanitizer
    from kernbench.sanitizer.watch import LiveWatch

_HOMES = {"LiveWatch": "watch", "Sanitizer": "run"}


def __getattr__(name: str) -> Any:
    """Import what checks."""
    return asked_for(__name__, _HOMES, name)
