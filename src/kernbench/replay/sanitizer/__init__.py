"""Replay that looks for the mistakes which a device turns into garbage (ADR-0020)."""

from kernbench.replay.sanitizer.launch import Launched
from kernbench.replay.sanitizer.live_watch import LiveWatch
from kernbench.replay.sanitizer.order import Clock
from kernbench.replay.sanitizer.run import Sanitizer, build_sanitizer
from kernbench.replay.sanitizer.spans import strided_spans
from kernbench.replay.sanitizer.touches import Kind, Part, Touch, record_touch

__all__ = [
    "Clock",
    "Kind",
    "Launched",
    "LiveWatch",
    "Part",
    "Sanitizer",
    "Touch",
    "build_sanitizer",
    "record_touch",
    "strided_spans",
]
