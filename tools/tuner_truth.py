#!/usr/bin/env python3
"""Whether kernbench tunes as devices do: configurations that a project ships against modeled times.

Each row of ``tools/tuned_blocks.csv`` is a shape, a device, and the configuration that vLLM's tuner
found to be the fastest there for its product of block-scaled 8-bit operands. Here a kernel of the
same structure is timed with that configuration and with a sample of those that were tried.

    python tools/tuner_truth.py [--rows 12] [--share 0.12]
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

from kernbench import RuntimeContext

DATA = Path(__file__).with_name("tuned_blocks.csv")
SCALED = 128
"""Elements along N and K that share a scale."""
NEAR, TOP = 1.1, 0.25


@triton.jit
def scaled_product(
    a_ptr, b_ptr, c_ptr, a_scales, b_scales, M, N, K, scales_k,
    SCALED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """``C = (A * scales of rows and K) @ (B * scales of squares).T``, in bands of GROUP tiles."""
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    pid = tl.program_id(0)
    first = pid // (GROUP * num_n) * GROUP
    band = min(num_m - first, GROUP)
    m = (first + pid % (GROUP * num_n) % band) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid % (GROUP * num_n) // band * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a_at = a_ptr + (m % M)[:, None] * K + k[None, :]
    b_at = b_ptr + (n % N)[None, :] * K + k[:, None]
    a_scale_at, b_scale_at = a_scales + m % M * scales_k, b_scales + n % N // SCALED * scales_k
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        left = K - step * BLOCK_K
        a = tl.load(a_at, mask=k[None, :] < left, other=0.0)
        b = tl.load(b_at, mask=k[:, None] < left, other=0.0)
        part = step * BLOCK_K // SCALED
        a_scale, b_scale = tl.load(a_scale_at + part), tl.load(b_scale_at + part)
        total += tl.dot(a, b) * a_scale[:, None] * b_scale[None, :]
        a_at += BLOCK_K
        b_at += BLOCK_K
    inside = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c_ptr + m[:, None] * N + n[None, :], total.to(tl.bfloat16), mask=inside)


@dataclass(frozen=True, slots=True)
class Block:
    """One configuration of the kernel."""

    m: int
    n: int
    k: int
    group: int
    num_warps: int
    num_stages: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} g{self.group} w{self.num_warps} s{self.num_stages}"


@dataclass(frozen=True, slots=True)
class Tuned:
    """A shape on a machine, and what was fastest there."""

    machine: str
    dtype: str
    sizes: tuple[int, int, int]
    best: Block


@dataclass(frozen=True, slots=True)
class Score:
    """How the published configuration of a shape does among modeled ones."""

    tuned: Tuned
    modeled: Block
    """The modeled best."""
    slower: float
    """The published one's time over the best one's; infinite where it is refused."""
    ahead: float
    """Share of the configurations that are faster than the published one."""
    count: int
    wrong: tuple[str, ...]
    """Knobs of which another value alone makes the published one 10 % faster."""


def read_rows(path: Path = DATA) -> list[Tuned]:
    """Return the rows of a file; lines that begin with # say where they are from."""
    lines = (line for line in path.read_text().splitlines() if not line.startswith("#"))
    return [
        Tuned(
            row["machine"],
            row["dtype"],
            (int(row["m"]), int(row["n"]), int(row["k"])),
            Block(*(int(row[name]) for name in
                    ("block_m", "block_n", "block_k", "group", "num_warps", "num_stages"))),
        )
        for row in csv.DictReader(lines)
    ]  # fmt: skip


def tried(tuned: Tuned, share: float, seed: int) -> Iterator[Block]:
    """Yield the published configuration, its neighbours, and a share of all others.

    On AMD's GPUs tuners leave loads at two stages.
    """
    best, draw = tuned.best, random.Random(seed)
    yield best
    stages, most = range(2, 6), share
    if tuned.machine.startswith("mi"):
        stages, most = range(2, 3), 4 * share
    sides = product((16, 32, 64, 128, 256), (32, 64, 128, 256), (128,), (1, 32), (4, 8), stages)
    for each in (Block(*sizes) for sizes in sides):
        near = (each.m, each.n) == (best.m, best.n)
        if each != best and (near or draw.random() < most):
            yield each


def score(tuned: Tuned, share: float, seed: int = 0) -> Score:
    """Return how a row's configuration does among a sample of those that a tuner tries."""
    m, n, k = tuned.sizes
    found: dict[Block, float] = {}
    with RuntimeContext(machine=tuned.machine, data=False) as torch:
        dtype = getattr(torch, tuned.dtype)
        parts = -(-k // SCALED)
        tensors = (
            torch.empty(m, k, dtype=dtype),
            torch.empty(n, k, dtype=dtype),
            torch.empty(m, n, dtype=torch.bfloat16),
            torch.empty(m, parts),
            torch.empty(-(-n // SCALED), parts),
        )

        def launch(block: Block) -> Any:
            grid = (triton.cdiv(m, block.m) * triton.cdiv(n, block.n),)
            return scaled_product[grid](
                *tensors, m, n, k, parts, SCALED, block.m, block.n, block.k, block.group,
                num_warps=block.num_warps, num_stages=block.num_stages,
            )  # fmt: skip

        for block in tried(tuned, share, seed):
            try:
                found[block] = triton.testing.do_bench(lambda block=block: launch(block))
            except OutOfResources:
                continue
    modeled = min(found, key=found.__getitem__)
    own = found.get(tuned.best, float("inf"))
    ahead = sum(each < own for each in found.values()) / len(found)
    wrong = {
        changed[0]
        for each, time in found.items()
        if time < own / NEAR and len(changed := _different(each, tuned.best)) == 1
    }
    return Score(tuned, modeled, own / found[modeled], ahead, len(found), tuple(sorted(wrong)))


def _different(one: Block, other: Block) -> list[str]:
    names = (each.name for each in fields(Block))
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def main(arguments: list[str]) -> None:
    """Print the table, and how many rows reach the goals."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=0, help="only so many (0: all)")
    parser.add_argument("--share", type=float, default=0.12, help="of the configurations to time")
    options = parser.parse_args(arguments)
    rows = read_rows()
    scores = []
    print(f"{'machine':<13} {'M, N, K':<18} {'published':<22} {'modeled best':<22} slower  ahead")
    for tuned in rows[: options.rows or len(rows)]:
        each = score(tuned, options.share)
        scores.append(each)
        sizes = ", ".join(map(str, tuned.sizes))
        print(
            f"{tuned.machine:<13} {sizes:<18} {tuned.best!s:<22} {each.modeled!s:<22} "
            f"{each.slower:>5.2f}x {each.ahead:>5.0%} of {each.count}",
            flush=True,
        )
    for machine in dict.fromkeys(each.tuned.machine for each in scores):
        report(machine, [each for each in scores if each.tuned.machine == machine])
    report("all", scores)


def report(name: str, scores: list[Score]) -> None:
    """Print how many of some rows reach each goal, and which single knob would have."""
    near = sum(each.slower <= NEAR for each in scores)
    top = sum(each.ahead <= TOP for each in scores)
    alike = sum(
        (each.modeled.m, each.modeled.n) == (each.tuned.best.m, each.tuned.best.n)
        for each in scores
    )
    wrong = Counter(knob for each in scores for knob in each.wrong)
    knobs = ", ".join(f"{knob} {count}" for knob, count in wrong.most_common()) or "none"
    print(
        f"{name}: of {len(scores)} published, {near} within 10 % of the modeled best, {top} in the "
        f"modeled top quarter, {alike} with its tile; knobs that alone gain 10 %: {knobs}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
