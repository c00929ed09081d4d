"""Phase 2: executing commands on the bytes of buffers, with numpy."""

from kernbench.replay.numerics.conversions import out_of_range
from kernbench.replay.numerics.elementwise import SHAPE_OPS
from kernbench.replay.numerics.ops.lookup import widened
from kernbench.replay.numerics.ops.shapes import full, same_lead
from kernbench.replay.plans.composite import composite_groups
from kernbench.replay.plans.group_plan import GroupPlan, Watch
from kernbench.replay.plans.persistent import (
    Joining,
    NotAlikeError,
    iterations_as_programs,
    outline,
    with_known,
)
from kernbench.replay.plans.plan import Plan
from kernbench.replay.run import run_collective, run_kernel
from kernbench.replay.steps.diagnostics import coordinates, show_printed
from kernbench.replay.steps.frame import Frame, PointerArg
from kernbench.replay.steps.lifetimes import operands, reads, results
from kernbench.replay.steps.outside import OutsideReads
from kernbench.replay.steps.sites import AccessSite, Chunks, atomic_name
from kernbench.replay.steps.step import Step
