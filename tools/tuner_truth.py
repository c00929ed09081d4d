#!/usr/bin/env python3
"""Whether kernbench tunes as devices do: configurations that a project ships against modeled times.

Each row of ``tools/tuned_blocks.csv`` and ``tools/tuned_experts.csv`` is a shape, a device, and the
configuration that vLLM's tuner found to be the fastest there. Here a kernel of the same structure
is timed with that configuration and with a sample of those that were tried.

    python -m tools.tuner_truth [--kernel experts] [--rows 12] [--each 45]
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import triton
from triton.runtime.errors import OutOfResources

from kernbench import RuntimeContext
from tools.tuned_kernels import AnyTuned, Block, read_experts, read_products

NEAR, TOP = 1.1, 0.25
KERNELS: dict[str, Callable[[], Sequence[AnyTuned]]] = {
    "products": read_products,
    "experts": lambda: read_experts("seen"),
    "experts-apart": lambda: read_experts("apart"),
}


@dataclass(frozen=True, slots=True)
class Score:
    """How the published configuration of a shape does among modeled ones."""

    tuned: AnyTuned
    modeled: Block
    """The modeled best."""
    slower: float
    """The published one's time over the best one's; infinite where it is refused."""
    ahead: float
    """Share of the configurations that are faster than the published one."""
    count: int
    wrong: tuple[str, ...]
    """Knobs of which another value alone makes the published one 10 % faster."""


def sample(tuned: AnyTuned, count: int, seed: int) -> list[Block]:
    """Return the published configuration, what differs in no side, and others, at random."""
    best, draw = tuned.best, random.Random(seed)
    near: list[Block] = []
    far: list[Block] = []
    for item in tuned.tried():
        alike = (item.m, item.n, item.k) == (best.m, best.n, best.k)
        if item != best:
            (near if alike else far).append(item)
    return [best, *near, *draw.sample(far, min(max(count - len(near) - 1, 0), len(far)))]


def score(tuned: AnyTuned, count: int, seed: int = 0) -> Score:
    """Return how a row's configuration does among about ``count`` of those that a tuner tries."""
    numbers: dict[Block, float] = {}
    with RuntimeContext(machine=tuned.machine, data=False) as torch:
        launches = tuned.launches(torch)
        for block in sample(tuned, count, seed):
            try:
                numbers[block] = sum(
                    triton.testing.do_bench_cudagraph(
                        lambda launch=launch, block=block: launch(block)
                    )
                    for launch in launches
                )
            except OutOfResources:
                continue
    modeled = min(numbers, key=numbers.__getitem__)
    own = numbers.get(tuned.best, float("inf"))
    ahead = sum(item < own for item in numbers.values()) / len(numbers)
    wrong = {
        changed[0]
        for name, time in numbers.items()
        if time < own / NEAR and len(changed := _different(name, tuned.best)) == 1
    }
    return Score(tuned, modeled, own / numbers[modeled], ahead, len(numbers), tuple(sorted(wrong)))


def _different(one: Block, other: Block) -> list[str]:
    names = (field.name for field in fields(Block))
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def main(arguments: list[str]) -> None:
    """Print a table for each kernel, and how many rows reach the goals."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--kernel", choices=KERNELS, help="only this one")
    parser.add_argument("--rows", type=int, default=0, help="only so many of each (0: all)")
    parser.add_argument("--each", type=int, default=45, help="configurations to time for a row")
    options = parser.parse_args(arguments)
    for kernel, read in KERNELS.items():
        if options.kernel in (None, kernel):
            rows = read()
            report_kernel(kernel, rows[: options.rows or len(rows)], options.each)


def report_kernel(kernel: str, rows: Sequence[AnyTuned], count: int) -> None:
    """Print the table of a kernel."""
    print(f"{kernel + ':':<13} {'shape':<30} {'published':<22} {'modeled best':<22} slower  ahead")
    scores = []
    for tuned in rows:
        item = score(tuned, count)
        scores.append(item)
        print(
            f"{tuned.machine:<13} {tuned!s:<30} {tuned.best!s:<22} {item.modeled!s:<22} "
            f"{item.slower:>5.2f}x {item.ahead:>5.0%} of {item.count} {' '.join(item.wrong)}",
            flush=True,
        )
    for machine in dict.fromkeys(score.tuned.machine for score in scores):
        report(machine, [score for score in scores if score.tuned.machine == machine])
    report("all", scores)


def report(name: str, scores: list[Score]) -> None:
    """Print how many of some rows reach each goal, and which single knob would have."""
    near = sum(score.slower <= NEAR for score in scores)
    top = sum(score.ahead <= TOP for score in scores)
    alike = sum(
        (score.modeled.m, score.modeled.n) == (score.tuned.best.m, score.tuned.best.n)
        for score in scores
    )
    wrong = Counter(knob for score in scores for knob in score.wrong)
    knobs = ", ".join(f"{knob} {count}" for knob, count in wrong.most_common()) or "none"
    print(
        f"{name}: of {len(scores)} published, {near} within 10 % of the modeled best, {top} in the "
        f"modeled top quarter, {alike} with its tile; knobs that alone gain 10 %: {knobs}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
