"""Kernels that projects ship tuned configurations of, and what their tuners try.

Written anew in the structure of those that were tuned: vLLM's product of block-scaled 8-bit
operands, and the two products of its mixture of experts.
"""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import triton
import triton.language as tl

BLOCKS = Path(__file__).with_name("tuned_blocks.csv")
EXPERTS = Path(__file__).with_name("tuned_experts.csv")
SCALED = 128
"""Elements along N and K that share a scale."""
AMD_OPTIONS = {"matrix_instr_nonkdim": 16}
"""What vLLM's configurations for AMD's GPUs all say; on others it says nothing."""


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


@triton.jit
def experts_product(
    a_ptr, b_ptr, c_ptr, slots_ptr, experts_ptr, a_scales, b_scales, N, K, padded, filled, routed,
    per_row, SCALED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """``C[slot] = A[slot // per_row] @ B[expert of slot].T``, of slots that are sorted by expert.

    A tile's rows have one expert; beyond ``filled`` rows there is nothing to do. Operands are
    scaled as in :func:`scaled_product` where ``SCALED`` is not 0.
    """
    num_m, num_n = tl.cdiv(padded, BLOCK_M), tl.cdiv(N, BLOCK_N)
    pid = tl.program_id(0)
    first = pid // (GROUP * num_n) * GROUP
    band = min(num_m - first, GROUP)
    tile = first + pid % (GROUP * num_n) % band
    if tile * BLOCK_M >= filled:
        return
    slot = tl.load(slots_ptr + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    there = slot < routed
    expert = tl.load(experts_ptr + tile).to(tl.int64)
    n = pid % (GROUP * num_n) // band * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a_at = a_ptr + (slot // per_row)[:, None] * K + k[None, :]
    b_at = b_ptr + expert * N * K + (n % N)[None, :] * K + k[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        left = K - step * BLOCK_K
        a = tl.load(a_at, mask=there[:, None] & (k[None, :] < left), other=0.0)
        b = tl.load(b_at, mask=k[:, None] < left, other=0.0)
        if SCALED > 0:
            scales_k, scales_n = tl.cdiv(K, SCALED), tl.cdiv(N, SCALED)
            part = step * BLOCK_K // SCALED
            a_scale = tl.load(a_scales + slot // per_row * scales_k + part, mask=there, other=0.0)
            row = expert * scales_n + n % N // SCALED
            b_scale = tl.load(b_scales + row * scales_k + part)
            total += tl.dot(a, b) * a_scale[:, None] * b_scale[None, :]
        else:
            total = tl.dot(a, b, acc=total)
        a_at += BLOCK_K
        b_at += BLOCK_K
    inside = there[:, None] & (n[None, :] < N)
    tl.store(c_ptr + slot[:, None] * N + n[None, :], total.to(tl.bfloat16), mask=inside)


@dataclass(frozen=True, slots=True)
class Block:
    """One configuration of a kernel."""

    m: int
    n: int
    k: int
    group: int
    num_warps: int
    num_stages: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} g{self.group} w{self.num_warps} s{self.num_stages}"


Launch = Callable[[Block], Any]


@dataclass(frozen=True, slots=True)
class Tuned:
    """A shape on a machine, and what was fastest there."""

    machine: str
    dtype: str
    best: Block

    @property
    def is_amd(self) -> bool:
        """Whether a tuner leaves loads at two stages."""
        return self.machine.startswith("mi")


@dataclass(frozen=True, slots=True)
class TunedProduct(Tuned):
    """A product of block-scaled operands."""

    sizes: tuple[int, int, int]

    def __str__(self) -> str:
        return ", ".join(map(str, self.sizes))

    def tried(self) -> Iterator[Block]:
        """Yield what the tuner tries, of fewer groups and depths."""
        stages = (2,) if self.is_amd else (2, 3, 4, 5)
        sides = product((16, 32, 64, 128, 256), (32, 64, 128, 256), (128,), (1, 32), (4, 8), stages)
        yield from (Block(*side) for side in sides)

    def launches(self, torch: Any) -> tuple[Launch, ...]:
        """Return what launches the product with a configuration."""
        m, n, k = self.sizes
        dtype = getattr(torch, self.dtype)
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
                num_warps=block.num_warps, num_stages=block.num_stages, **AMD_OPTIONS,
            )  # fmt: skip

        return (launch,)


@dataclass(frozen=True, slots=True)
class TunedExperts(Tuned):
    """Both products of a mixture of experts, which share a configuration."""

    scaled: int
    tokens: int
    experts: int
    inter: int
    hidden: int
    choices: int

    def __str__(self) -> str:
        return f"{self.tokens} x {self.choices} of {self.experts}, {self.hidden}, {self.inter}"

    @property
    def rows(self) -> tuple[int, ...]:
        """Of each expert that has any: the tuner draws its gates at random."""
        draw = random.Random(self.tokens)
        chosen = (draw.sample(range(self.experts), self.choices) for _ in range(self.tokens))
        return tuple(Counter(item for token in chosen for item in token).values())

    def tried(self) -> Iterator[Block]:
        """Yield what the tuner tries, of fewer groups."""
        if self.is_amd:
            sides = product(
                (16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (64, 128, 256),
                (1, 8), (1, 2, 4, 8), (2,),
            )  # fmt: skip
        else:
            sides = product(
                (16, 32, 64, 128, 256), (32, 64, 128, 256), (64, 128, 256),
                (1, 32), (4, 8), (2, 3, 4, 5),
            )  # fmt: skip
        for block in (Block(*side) for side in sides):
            # Scales are for whole squares; deeper tiles than that are cut to it.
            if self.scaled and (block.k != self.scaled or block.n % self.scaled):
                continue
            if not self.is_amd or self._is_left(block):
                yield block

    def _is_left(self, block: Block) -> bool:
        """Return whether vLLM's tuner leaves a block after pruning for AMD's GPUs."""
        routed = self.tokens * self.choices
        if block.m > max(2 * routed, 16) or (block.group > 1 and block.group * block.m > routed):
            return False
        large = routed >= 2048 and min(self.hidden, 2 * self.inter) >= 2048
        return not large or min(block.m, block.n, 16 * block.num_warps) >= 64

    def launches(self, torch: Any) -> tuple[Launch, ...]:
        """Return what launches the products with a configuration: up with its gate, and down."""
        up = self._launch(torch, 2 * self.inter, self.hidden, self.choices)
        return up, self._launch(torch, self.hidden, self.inter, 1)

    def _launch(self, torch: Any, n: int, k: int, per_row: int) -> Launch:
        routed, experts, dtype = (
            self.tokens * self.choices,
            self.experts,
            getattr(torch, self.dtype),
        )
        parts = -(-k // self.scaled) if self.scaled else 1
        squares = -(-n // self.scaled) if self.scaled else 1
        a, b = (
            torch.empty(*item, dtype=dtype) for item in ((routed // per_row, k), (experts, n, k))
        )
        c = torch.empty(routed, n, dtype=torch.bfloat16)
        scales = torch.empty(routed // per_row, parts), torch.empty(experts, squares, parts)
        rows = self.rows

        def launch(block: Block) -> Any:
            tiles = sum(-(-row // block.m) for row in rows)
            # Of a length that suffices for any choice of experts.
            most = routed + experts * (block.m - 1)
            if self.tokens < block.m:
                most = min(most, routed * block.m)
            height = -(-most // block.m)
            slots = torch.empty(height * block.m, dtype=torch.int32)
            chosen = torch.empty(height, dtype=torch.int32)
            return experts_product[(height * triton.cdiv(n, block.n),)](
                a, b, c, slots, chosen, *scales, n, k, height * block.m, tiles * block.m, routed,
                per_row, self.scaled, block.m, block.n, block.k, block.group,
                num_warps=block.num_warps, num_stages=block.num_stages, **AMD_OPTIONS,
            )  # fmt: skip

        return launch


AnyTuned = TunedProduct | TunedExperts


def read_products(path: Path = BLOCKS) -> list[TunedProduct]:
    """Return the rows of a file of products."""
    products = []
    for row in _rows(path):
        m, n, k = _numbers(row, "m", "n", "k")
        products.append(TunedProduct(row["machine"], row["dtype"], _block(row), (m, n, k)))
    return products


def read_experts(part: str, path: Path = EXPERTS) -> list[TunedExperts]:
    """Return the rows of a part of a file of mixtures of experts."""
    names = ("scaled", "tokens", "experts", "inter", "hidden", "choices")
    return [
        TunedExperts(row["machine"], row["dtype"], _block(row), *_numbers(row, *names))
        for row in _rows(path)
        if row["part"] == part
    ]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a file; lines that begin with # say where they are from."""
    yield from csv.DictReader(
        line for line in path.read_text().splitlines() if not line.startswith("#")
    )


def _numbers(row: dict[str, str], *names: str) -> Sequence[int]:
    return [int(row[name]) for name in names]


def _block(row: dict[str, str]) -> Block:
    names = ("block_m", "block_n", "block_k", "group", "num_warps", "num_stages")
    return Block(*_numbers(row, *names))
