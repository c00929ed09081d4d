"""What a process assigns to modules and classes that all share, kept for it alone (ADR-0226)."""

from kernbench.torch_bridge.assigned.assignments import Assignments

__all__ = ["Assignments"]
