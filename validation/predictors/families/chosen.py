"""What a row of a program asks for, and which family of programs it is of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kernbench.accuracy.rows import Row
from validation.programs import Program

A100_80G = "A100-SXM4-80GB"
"""The device of sources that say A100, or none, and by what they ran mean the 80 GB module."""
A100_40G = "A100-SXM4-40GB"
"""The device of sources that say A100, and elsewhere that it is the one of 40 GB."""


CLUSTER_DEVICES = 64
"""From so many devices on a row is of a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenProgram:
    """A program, and how its step's time becomes the row's."""

    program: Program
    device: str = ""
    """Where the row's own name of the device does not say which it is; else empty."""
    units: float = 1.0
    """How many of what the row's time is of are in a step; 1 where it is of a step."""
    extra_us: float = 0.0
    """What the row's mean has besides, for each step: its share of a first one that takes longer.
    """
    conditions: tuple[tuple[str, float], ...] = ()
    """Keys of the machine that the source's own host, or its cooling, had otherwise
    (docs/model/programs.md)."""
    runs_hot: bool = False
    """Whether its devices are busy for so many steps that their clocks lose what they can."""


BEFORE_STATIC_LAUNCHER = (
    ("host.compiled_launch_us", 16.0),
    ("host.compiled_call_us", 49.0),
    ("host.compiled_guard_us", 0.33),
)
"""What graphs of ``torch.compile`` took before PyTorch 2.8 (its release notes: a static launcher).

Triton's launcher, which three Python functions call, started kernels. Entering a graph took what is
between compiled and eager programs of one elementwise kernel with PyTorch 2.5 on nine hosts of
KernelBench (54 rows): 32 to 62 us by host, each in proportion to its eager programs; the median.
Accelerate's regions, 16 graphs in a forward, ask for 55. A guard is in proportion to the entry.
"""


def is_compiled(row: Row) -> bool:
    """Return whether the row's program was compiled: by torch.compile, or another compiler."""
    said = row.fields.get("compile", row.fields.get("config", "")).strip()
    return not (said in ("", "eager", "torch") or said.startswith("no"))


def num_nodes(row: Row) -> int:
    """Return on how many nodes a program ran; 1 where the row does not say."""
    return row.integer("nodes") if row.fields.get("nodes") else 1


class Family(StrEnum):
    """What sort of program a row is of."""

    EAGER_TRAINING = "eager training"
    COMPILED_TRAINING = "compiled training"
    EAGER_INFERENCE = "eager inference"
    COMPILED_INFERENCE = "compiled inference"
    DECODE = "decode"
    MANY_DEVICES = "many devices"
    CLUSTERS = "64 devices and more"
    OPERATIONS = "eager operations and networks"
    COMPILED_OPERATIONS = "compiled operations and networks"
    KERNELS = "Triton kernels"
    IN_CUDA = "kernels in CUDA C++"


IN_CUDA = "its kernels are in CUDA C++"
"""Why a row of kernels has no answer: none of them is Triton's, or not all are."""


def family_of(row: Row, why_not: str = "") -> Family:
    """Return the family of a row of programs, whose reason to have no answer may say it."""
    if why_not == IN_CUDA:
        return Family.IN_CUDA
    if row.source in ("geak", "kernelbench.com", "tritonbench"):
        return Family.OPERATIONS if row.fields.get("part") == "perf_T" else Family.KERNELS
    if row.source == "kernelbench":
        return Family.COMPILED_OPERATIONS if is_compiled(row) else Family.OPERATIONS
    devices = row.optional("n_devices") or 1
    if devices >= CLUSTER_DEVICES:
        return Family.CLUSTERS
    if devices > 1:
        return Family.MANY_DEVICES
    said = " ".join(row.fields.get(name, "") for name in ("metric", "program_config", "phase"))
    said = said.lower()
    if "decode" in said or "tpot" in said:
        return Family.DECODE
    compiled = is_compiled(row)
    trains = "backward" in said or "train" in said
    if not trains and any(name in said for name in ("infer", "forward_time")):
        return Family.COMPILED_INFERENCE if compiled else Family.EAGER_INFERENCE
    return Family.COMPILED_TRAINING if compiled else Family.EAGER_TRAINING
