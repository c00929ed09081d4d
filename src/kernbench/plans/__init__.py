"""Steps of models split over devices: layers run on a machine, collectives on its links.

What ``kernbench plan`` ranks, and what rows of layers and iterations are answered by.
"""

from kernbench.plans.layouts import GIB, PROGRAM, SHARDS, AllowedSizes, Job, Layout, layouts, memory
from kernbench.plans.models import ModelShape, model_of
from kernbench.plans.passes import Model, Pass, Passes, PassTime, TunedTiles
from kernbench.plans.pipelines import forward_us, one_forward_one_backward_us
from kernbench.plans.problem import Cached, Problem
from kernbench.plans.steps import Microbatch, Steps, StepTime
from kernbench.plans.tiles import GemmTuner, Timed
from kernbench.plans.times import HOST, PlanTimes, TimedLayout
from kernbench.plans.wires import MachineOf, StageWires, node_of
