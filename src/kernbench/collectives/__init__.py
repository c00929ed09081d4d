"""Collective algorithms as schedules of chunk transfers."""

from kernbench.collectives.registry import AUTO, build, known_algorithms, known_ops
from kernbench.collectives.schedule import Schedule, ScheduleKey, Step

__all__ = ["AUTO", "Schedule", "ScheduleKey", "Step", "build", "known_algorithms", "known_ops"]
