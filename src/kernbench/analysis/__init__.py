"""Why a run took as long as it did: its critical path, and where every picosecond of it went."""

from kernbench.analysis.attribution import Spent, attribution
from kernbench.analysis.critical_path import Segment, critical_path
from kernbench.analysis.why import Why, explain, print_why

__all__ = [
    "Segment",
    "Spent",
    "Why",
    "attribution",
    "critical_path",
    "explain",
    "print_why",
]
