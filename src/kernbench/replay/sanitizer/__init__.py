"""Replay that looks for the mistakes which a device turns into garbage (ADR-0020)."""

from kernbench.replay.sanitizer.launch import Launched
from kernbench.replay.sanitizer.run import Sanitizer, as_sanitizer

__all__ = ["Launched", "Sanitizer", "as_sanitizer"]
