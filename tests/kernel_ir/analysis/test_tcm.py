from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.commands import Loop
from kernbench.kernel_ir import tcm_use
from tests.kernel_ir.cases import VERSIONS, kernel, module, trace

SOURCE = (Path(__file__).parents[1] / "kernels.py").read_text().splitlines()


@pytest.mark.adr("0004-D6")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_matmul_buffers_its_loads_once_per_stage(version: str, stages: int) -> None:
    use = tcm_use(module("matmul", version), stages)
    loads = (64 * 32 + 32 * 64) * 2 * stages
    accumulator = 64 * 64 * 4
    # The largest other tile is the converted result.
    assert use.total_bytes == loads + accumulator + 64 * 64 * 2
    assert sorted(tile.copies for tile in use.tiles) == sorted([stages, stages, 1, 1])
    assert use.total_bytes == sum(tile.size_bytes * tile.copies for tile in use.tiles)


def test_every_tile_names_its_line() -> None:
    by_what = {tile.what: tile for tile in tcm_use(module("matmul"), 3).tiles}
    assert "tl.load(ap" in SOURCE[by_what["load 64x32xf16"].line.line - 1]
    assert "tl.dot(a, b, acc)" in SOURCE[by_what["accumulator 64x64xf32"].line.line - 1]


def test_a_loop_that_asks_for_stages_buffers_all_its_loads() -> None:
    # softmax has no dot; tl.range(..., num_stages=3) asks, whatever the launch says.
    use = tcm_use(module("softmax"), 1)
    assert max(tile.copies for tile in use.tiles) == 3


@pytest.mark.parametrize(
    ("name", "ints", "stages"),
    [
        ("matmul", {3: 64, 4: 64, 5: 64, 6: 64, 7: 64, 8: 64}, 4),
        ("softmax", {2: 8, 3: 8, 4: 4, 5: 8}, 3),
        ("layernorm", {6: 64, 7: 64}, 1),
    ],
)
def test_a_loop_runs_ahead_as_triton_would_let_it(
    name: str, ints: dict[int, int], stages: int
) -> None:
    result = trace(name, (1, 1, 1), ints, num_stages=4)
    loops = [command for command in result.commands() if isinstance(command, Loop)]
    assert {loop.num_stages for loop in loops} == {stages}


def test_a_loop_around_a_loop_does_not_run_ahead() -> None:
    result = trace("persistent", (4, 1, 1), {3: 512, 4: 512, 5: 64}, num_stages=3)
    outer = [loop for loop in result.groups[0].body if isinstance(loop, Loop)]
    inner = [loop for loop in outer[0].body if isinstance(loop, Loop)]
    assert (outer[0].num_stages, inner[0].num_stages) == (1, 3)


def test_the_trace_says_what_the_text_says() -> None:
    result = trace("desc", (1, 1, 1), {3: 64, 4: 64, 5: 64}, num_stages=2)
    assert result.tcm_bytes == tcm_use(module("desc"), 2).total_bytes


def test_scalars_need_no_tcm() -> None:
    assert tcm_use(kernel("    %v = tt.load %x : !tt.ptr<f32>"), 3).total_bytes == 0
