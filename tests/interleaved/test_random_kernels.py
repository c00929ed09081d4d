"""Random kernels over paged and ragged data against the same text in numpy, program by program."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.interleaved import launch
from tests.interleaved import per_program

HEADER = "import triton\nimport triton.language as tl\n\n"
PAGE, COLUMNS = 4, 16
SEEDS = [*range(8), 126, 130]
"""The last two have programs for which a tile is a constant that it is not for others."""


def kernel_text(rng: random.Random) -> str:
    """Return a kernel that sums rows of pages up to lengths that it loads."""
    pick = rng.choice
    end = pick(["length", "tl.minimum((block + 1) * R, length)", "tl.maximum(length - block, 0)"])
    row = pick(["block * R + m", "block * R + m // 2", "block + m", "m", "length - m"])
    at = pick(["j * T + tl.arange(0, T)", "tl.arange(0, T) + j * T + start"])
    inside = pick(["at < end", "(at < end) & (at >= start)", "(at < end) & (page >= 0)"])
    weight = pick(
        ["at[None, :] - row[:, None]", "at[None, :] * c", "row[:, None] + at[None, :] % 3"]
    )
    test = pick(["at[None, :] <= row[:, None]", "at[None, :] % 2 == 0", "row[:, None] < start + 3"])
    other = pick(["0", "1", "at[None, :]", "start", "block"])
    scale = pick(
        ["", "if start > 1:\n            w = w + block\n", "if block > 1:\n            w = w * 2\n"]
    )
    offset = pick([
        "(page * P + at % P)[:, None] * D + d[None, :]",
        "page[:, None] * (P * D) + d[None, :] + (at % P)[:, None] * D",
        "(page[:, None] * (P * D) + ((at % P)[:, None] * D + d[None, :]))",
    ])  # fmt: skip
    loop = pick(
        ["for j in range(0, tl.cdiv(end, T)):", "for j in range(start // T, tl.cdiv(end, T)):"]
    )
    product = pick(["tl.sum(w[:, :, None] * v[None, :, :], 1)", "tl.dot(w, v)"])
    last = pick(
        [
            "",
            "if length > 5:\n        total = total + row[:, None]\n",
            "if block == 0:\n        return\n",
        ]
    )
    guard = pick(["row < length", "row < n", "(row < n) & (row >= start)"])
    return f"""@triton.jit
def paged(x, table, lengths, starts, out, n, c, P: tl.constexpr, D: tl.constexpr, R: tl.constexpr, T: tl.constexpr):
    block = tl.program_id(0)
    seq = tl.program_id(1)
    length = tl.load(lengths + seq)
    start = tl.load(starts + {pick(["seq", "block % 2", "0"])})
    d = tl.arange(0, D)
    m = tl.arange(0, R)
    row = {row}
    total = tl.zeros([R, D], tl.float32)
    end = {end}
    {loop}
        at = {at}
        page = tl.load(table + seq * n + at // P, mask=at // P < n, other=0)
        v = tl.load(x + {offset}, mask=({inside})[:, None], other=0)
        w = tl.where({test}, {weight}, {other}).to(tl.float32)
        {scale}
        total += {product}
    {last}
    mine = block * R + m
    rows = (seq * n + mine)[:, None] * D + d[None, :]
    tl.store(out + rows, total, mask=(({guard}) & (mine < n))[:, None])
"""  # noqa: E501


def loaded(text: str, folder: Path, number: int) -> Any:
    path = folder / f"random_{number}.py"
    path.write_text(HEADER + text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.paged


@pytest.mark.parametrize("seed", SEEDS)
def test_random_paged_kernels_compute_what_their_text_does_in_numpy(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    # A few programs are as many strands as thousands are of large tiles.
    monkeypatch.setattr(launch, "_STRAND_ELEMENTS", rng.choice([1 << 20, 1 << 13, 1 << 12]))
    text = kernel_text(rng)
    sequences, n = rng.choice([1, 2, 5]), rng.choice([16, 24, 40])
    numbers = np.random.default_rng(seed)
    arrays: dict[str, Any] = {
        "x": numbers.integers(-4, 5, (64 * PAGE, COLUMNS)).astype(np.float32),
        "table": numbers.integers(0, 64, (sequences, n)).astype(np.int32),
        "lengths": numbers.integers(0, n + 1, sequences).astype(np.int32),
        "starts": numbers.integers(0, 5, max(sequences, 2)).astype(np.int32),
        "out": np.zeros((sequences, n, COLUMNS), np.float32),
    }
    sizes = {"n": n, "c": rng.choice([1, 3]), "P": PAGE, "D": COLUMNS}
    sizes |= {"R": rng.choice([4, 8]), "T": rng.choice([8, 16])}
    grid = (n // sizes["R"] + rng.choice([0, 1]), sequences)
    kernel = loaded(text, tmp_path, seed)
    with kernbench.RuntimeContext("h100-sxm", ranks=1) as torch:
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        kernel[grid](**tensors, **sizes)
        result = tensors["out"].numpy()
    per_program.run(text, "paged", grid, arrays | sizes)
    np.testing.assert_array_equal(result, arrays["out"], text)
