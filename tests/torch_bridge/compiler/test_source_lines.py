"""Errors in what Inductor wrote name the program's own lines, or what a GPU refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.tiers import of_campaigns
from tests.torch_bridge.compiler.test_compiler import run_compiled

PICK = """
import torch

def pick(table, index):
    scaled = table * 2
    return scaled[index] + 1

def embed(table, index):
    return torch.nn.functional.embedding(index, table[:, None]).sin()

@torch.compile
def other(table, index):
    scaled = table * 3
    return scaled[index] - 1

table = torch.arange(8.0, device="cuda")
index = torch.tensor([1, 2, 11], device="cuda")
"""
REFUSED = """
import torch

def refused(function, *operands, **options):
    try:
        torch.compile(function)(*operands, **options)
    except RuntimeError as error:
        print(error)

def integers(*sizes):
    return torch.ones(*sizes, dtype=torch.int8, device="cuda")

one = torch.ones((), device="cuda")
floats = torch.ones(32, 32, device="cuda").to(torch.float8_e4m3fn)
refused(torch._int_mm, integers(16, 32), integers(32, 32))
refused(torch._int_mm, integers(17, 12), integers(12, 32))
refused(torch._scaled_mm, floats, floats, one, one, out_dtype=torch.bfloat16)
"""


def error_of(folder: Path, name: str, call: str) -> str:
    """Return what a program that ends with a call says on stderr."""
    path = folder / name
    path.write_text(f"{PICK}{call}\n")
    return run_compiled(folder, str(path)).stderr


def test_an_index_out_of_bounds_names_the_line_that_indexes(tmp_path: Path) -> None:
    # Twice: an equal graph that another program has left on disk has lines of its own.
    for name in ("one.py", "two.py"):
        error = error_of(tmp_path, name, "torch.compile(pick)(table, index)")
        assert "index out of bounds: 0 <= " in error
        assert f"the kernel computes {tmp_path / name}:6 in pick: return scaled[index] + 1" in error


@pytest.mark.parametrize(
    ("call", "named"),
    [
        # A line that calls a function of PyTorch is the program's.
        of_campaigns("torch.compile(embed)(table, index)", "three.py:9 in embed: return torch.nn"),
        # Functions with nodes of one name are told apart.
        of_campaigns(
            "torch.compile(pick)(table, index % 8)\nother(table, index)",
            "three.py:14 in other: return scaled[index] - 1",
        ),
    ],
)
def test_the_line_is_that_of_the_function_which_runs(call: str, named: str, tmp_path: Path) -> None:
    assert f"the kernel computes {tmp_path}/{named}" in error_of(tmp_path, "three.py", call)


@pytest.mark.campaign
def test_compiled_products_are_refused_as_a_gpu_refuses_them(tmp_path: Path) -> None:
    path = tmp_path / "refused.py"
    path.write_text(REFUSED)
    said = run_compiled(tmp_path, str(path)).stdout
    assert "torch._int_mm: self.size(0) needs to be greater than 16, but got 16" in said
    assert "torch._int_mm: self.size(1) needs to be greater than 0 and a multiple of 8" in said
    assert "mat2 must be col_major, got stride" in said
