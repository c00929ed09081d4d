"""Steps of models split over devices: layers run on a machine, collectives on its links.

What ``kernbench plan`` ranks, and what rows of layers and iterations are answered by.
"""

from kernbench.plans.layouts import GIB, PROGRAM, SHARDS, AllowedSizes, Job, Layout, layouts, memory
from kernbench.plans.models import ModelShape, model_of
from kernbench.plans.passes import (
    Microbatch,
    Model,
    Pass,
    Passes,
    PassTime,
    Steps,
    StepTime,
    TunedTiles,
)
from kernbench.plans.pipelines import (
    MachineOf,
    StageWires,
    forward_us,
    node_of,
    one_forward_one_backward_us,
)
from kernbench.plans.tiles import Cached, GemmTuner, Problem, Timed
from kernbench.plans.times import HOST, PlanTimes, TimedLayout
