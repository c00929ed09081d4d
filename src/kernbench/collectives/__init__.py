"""Collective algorithms as schedules of chunk transfers."""

from kernbench.collectives.nccl import covers as nccl_covers
from kernbench.collectives.nccl import estimates as nccl_estimates
from kernbench.collectives.registry import (
    AUTO,
    AlgorithmClass,
    algorithm_class,
    build,
    for_small_groups,
    known_algorithms,
    known_ops,
    refusal,
    serves_groups_of,
)
from kernbench.collectives.schedule import Counts, Index, Part, Schedule, ScheduleKey, Step
