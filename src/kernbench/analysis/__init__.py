"""Why a run took as long as it did: its critical path, and where every second of it went."""

from kernbench.analysis.critical_path import Segment, critical_path

__all__ = ["Segment", "critical_path"]
