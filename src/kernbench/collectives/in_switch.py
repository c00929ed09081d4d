"""Reduction inside the switch: it adds what all ranks send, and multicasts the result.

Source of the form: NVLink SHARP, as NCCL uses it (src/device/all_reduce.h, NVLS).
"""

from __future__ import annotations

import numpy as np

from kernbench.collectives.plan import Plan, Request, even_bounds, in_one_round, shared_index
from kernbench.collectives.schedule import Step

SLICE_BYTES = 1024 * 1024
MOST_SLICES = 32


def all_reduce(asked: Request) -> Plan:
    """Return a pipeline of slices: each rank gets the sum of its part, then all get all parts.

    A slice is summed while the one before it is handed out. A rank sends each byte once to be
    summed and its part once to be copied: ``(n + 1) / n`` times the message.
    """
    n = asked.num_ranks
    slices = min(max(asked.size_bytes // SLICE_BYTES, 1), MOST_SLICES)
    steps: list[Step] = []
    for number in range(slices + 1 if n > 1 else 0):
        moves = _handed_out(n, number - 1) if number else []
        if number < slices:
            # A rank's own part goes last: with it the sum comes back.
            *others, own = _summed(n, number)
            steps += [*in_one_round([*moves, *others]), own]
        else:
            steps += in_one_round(moves)
    return even_bounds(asked.num_elements, n * slices), tuple(steps)


def _summed(n: int, slice_number: int) -> list[Step]:
    """Return the steps that give each rank the sum of its part; its own enters the switch last."""
    src = shared_index(np.arange(n))
    steps = []
    for shift in range(1, n):
        dst = shared_index((src + shift) % n)
        steps.append(Step(src, dst, shared_index(slice_number * n + dst), reduce=True, part="up"))
    return [*steps, Step(src, src, shared_index(slice_number * n + src), reduce=False, part="turn")]


def _handed_out(n: int, slice_number: int) -> list[Step]:
    """Return the steps that multicast each rank's part: it enters the switch only once."""
    src = shared_index(np.arange(n))
    own = shared_index(slice_number * n + src)
    return [
        Step(
            src,
            shared_index((src + shift) % n),
            own,
            reduce=False,
            part="whole" if shift == 1 else "down",
        )
        for shift in range(1, n)
    ]
