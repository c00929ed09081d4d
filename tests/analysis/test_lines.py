"""The lines of a kernel add up to it, and are the right file's."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import triton
import triton.language as tl
from rich.console import Console

from kernbench import RuntimeContext
from kernbench.analysis import kernel_lines, kernels_by_time, print_lines
from kernbench.errors import UnknownNameError
from kernbench.inputs import source_texts
from kernbench.report import LEAST_COLUMNS, format_ns


@triton.jit
def strided(x_ptr, num_tiles, BLOCK: tl.constexpr):
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        at = tile * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + at, tl.load(x_ptr + at) + 1.0)


def example() -> RuntimeContext:
    with RuntimeContext(machine="ahbm", data=False) as torch:
        a = torch.zeros(512, 512, dtype="f16")
        for _ in range(3):
            a = a @ a
    return torch


def test_lines_add_up_to_the_kernel_in_time_bytes_and_operations() -> None:
    torch = example()
    result = kernel_lines(torch.op_log, "matmul")
    instances = [
        instance for instance in torch.op_log.instances if instance.template.name == "matmul"
    ]
    time_ps = sum(instance.ends_ps[0] - instance.starts_ps[0] for instance in instances)
    assert (result["launches"], result["time_ns"]) == (3, time_ps / 1000)
    lines = result["lines"]
    assert sum(line["time_ns"] for line in lines) == pytest.approx(result["time_ns"])
    assert sum(line["flops"] for line in lines) == 3 * 2 * 512**3
    table = torch.op_log.to_arrow().to_pylist()
    moved = sum(row["bytes"] for row in table if row["name"] == "matmul")
    assert sum(line["bytes"] for line in lines) == moved


def test_the_dot_does_the_operations_and_loads_and_stores_move_the_bytes() -> None:
    lines = kernel_lines(example().op_log, "matmul")
    for item in lines["lines"]:
        text = Path(item["file"]).read_text().splitlines()[item["line"] - 1]
        assert (item["flops"] > 0) == ("tl.dot" in text)
        if item["bytes"]:
            assert "tl.load" in text or "tl.store" in text
            assert item["engine"] in ("dma_in", "dma_out", "math")


def test_printed_lines_stand_beside_their_source() -> None:
    torch = example()
    lines = kernel_lines(torch.op_log, "matmul")
    out = io.StringIO()
    files = [item["file"] for item in lines["lines"]]
    print_lines(lines, source_texts(files), Console(file=out, width=160))
    (dot,) = (line for line in out.getvalue().splitlines() if "tl.dot(" in line)
    number = next(item["line"] for item in lines["lines"] if item["flops"])
    assert dot.split()[0] == str(number)
    assert "gemm" in dot
    assert "def gemm(" in out.getvalue()
    # Without the sources, the numbers are still there.
    out = io.StringIO()
    print_lines(lines, {}, Console(file=out, width=160))
    assert any(line.split()[:1] == [str(number)] for line in out.getvalue().splitlines())


def test_programs_without_a_tile_have_no_lines() -> None:
    with RuntimeContext(machine="ahbm", data=False) as torch:
        strided[(8,)](torch.zeros(3 * 64, dtype="f32"), 3, BLOCK=64)
        strided[(8,)](torch.zeros(3 * 64, dtype="f32"), 0, BLOCK=64)
    lines = kernel_lines(torch.op_log, "strided")
    assert lines["launches"] == 2
    assert max(line["bytes"] for line in lines["lines"]) == 2 * 3 * 64 * 4


def test_kernels_are_known_by_name_the_longest_first() -> None:
    torch = example()
    assert kernels_by_time(torch.op_log)[0] == "matmul"
    with pytest.raises(UnknownNameError, match=r"no kernel 'gemm'; it launched .*matmul"):
        kernel_lines(torch.op_log, "gemm")


@pytest.mark.parametrize("width", [30, 50, 80, 120])
def test_numbers_of_lines_are_whole_at_any_width(width: int) -> None:
    lines = kernel_lines(example().op_log, "matmul")
    out = io.StringIO()
    files = [item["file"] for item in lines["lines"]]
    print_lines(lines, source_texts(files), Console(file=out, width=width))
    rows = out.getvalue().splitlines()
    for item in lines["lines"]:
        (row,) = (row for row in rows if row.split()[:1] == [str(item["line"])])
        assert format_ns(item["time_ns"]) in row
        assert item["engine"] in row
        assert len(row) <= max(width, LEAST_COLUMNS)
