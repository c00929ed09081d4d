"""Replay that detects mistakes which a device would turn into wrong numbers (ADR-0020)."""

from kernbench.sanitizer.facts.lanes import strided_spans
from kernbench.sanitizer.facts.launch import Launched
from kernbench.sanitizer.facts.order import Clock
from kernbench.sanitizer.ordering.touches import Touch, Touches, TouchKind, TouchPart, record_touch
from kernbench.sanitizer.run import Sanitizer, build_sanitizer
from kernbench.sanitizer.watch import LiveWatch
