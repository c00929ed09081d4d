"""What a process assigns to modules and classes that all share, kept for it alone (ADR-0226)."""

from kernbench.torch_bridge.assigned.assignments import Assignments
from kernbench.torch_bridge.assigned.writes import CAN_SEE_CLASSES
