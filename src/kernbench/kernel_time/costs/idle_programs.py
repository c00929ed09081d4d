"""Programs of a launch that look whether there is work, and find none."""

from __future__ import annotations

import math

import numpy as np

from kernbench.commands import DmaRead, KernelTrace, ProgramGroup, walk
from kernbench.dtypes import Array


def working_ids(trace: KernelTrace) -> Array | None:
    """Return the ids, rising, of programs that do more than load single numbers; None if all do.

    A grid that suffices for any choice of experts has programs for which no rows are left. They
    end at once, and others run in their place.
    """
    working = [group for group in trace.groups if not _is_idle(group)]
    if not working or len(working) == len(trace.groups):
        return None
    return np.sort(np.concatenate([group.program_ids for group in working]))


def _is_idle(group: ProgramGroup) -> bool:
    return all(
        isinstance(node, DmaRead) and math.prod(node.source.shape) == 1 for node in walk(group.body)
    )
