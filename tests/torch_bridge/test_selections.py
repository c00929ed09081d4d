"""Selections by indices, held to bursts that numpy counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kernbench.hardware import load_machine  # noqa: E402
from kernbench.op_log import Template  # noqa: E402
from kernbench.torch_bridge.base.operations import describe  # noqa: E402
from kernbench.torch_bridge.costs import OperationCosts  # noqa: E402
from kernbench.torch_bridge.processes.float32 import Float32  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

aten = torch.ops.aten
MACHINE = load_machine("h100-sxm", 1)
COSTS = OperationCosts(MACHINE, Float32())
BURST = MACHINE.sip.cube.hbm_burst_bytes
MIB = 2**20


def empty(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


def indices(*shape: int) -> Any:
    return empty(*shape, dtype=torch.int64)


def template(func: Any, *args: Any) -> Template:
    result = func(*args)
    return COSTS.timing(func, describe(func), args, {}, result, 0).template(True)


@pytest.mark.parametrize("row", [1, 3, 12, 16, 25, 64])
@pytest.mark.parametrize("count", [100, 5000, 200_000])
def test_rows_of_a_table_in_the_cache_come_in_bursts_once(row: int, count: int) -> None:
    """By numpy: different bursts that random rows of floats lie in."""
    rows = 2 * MIB // (4 * row)
    table, chosen = empty(rows, row), indices(count)
    result = template(aten.index_select.default, table, 0, chosen)
    first = np.random.default_rng(count).integers(0, rows, count)[:, None] * 4 * row
    touched = np.unique((first + 4 * np.arange(row)) // BURST).size * BURST
    read = result.hbm_bytes - chosen.nbytes - 4 * row * count
    assert read == pytest.approx(touched, rel=0.05, abs=4 * BURST)


def test_elements_of_a_large_table_take_a_burst_each() -> None:
    """Closed form: a burst, an index of 8 bytes and a result of 4, for each of 2^20."""
    count, table = MIB, empty(256 * MIB)
    item: dict[str, tuple[Any, ...]] = {}
    item["index"] = (aten.index.Tensor, table, [indices(count)])
    item["take"] = (aten.take.default, table, indices(count))
    item["gather"] = (aten.gather.default, empty(MIB, 512), 0, indices(2048, 512))
    for func, *args in item.values():
        assert template(func, *args).hbm_bytes == pytest.approx(count * (BURST + 12), rel=0.01)


def test_neighbors_share_bursts_where_they_lie_side_by_side() -> None:
    rows, width = 64 * 1024, 1024
    table = empty(rows, width)
    chosen = 4096
    expected = 2 * chosen * width * 4 + chosen * 8
    embedded = template(aten.embedding.default, table, indices(chosen))
    assert embedded.hbm_bytes == pytest.approx(expected, rel=0.01)
    expanded = template(aten.gather.default, table, 0, indices(chosen, 1).expand(chosen, width))
    assert expanded.hbm_bytes == pytest.approx(expected, rel=0.01)
    # Along a row every burst of it is needed once, and its elements are near each other.
    inside = template(aten.gather.default, table, 1, indices(rows, width))
    assert inside.hbm_bytes == pytest.approx(rows * width * (4 + 4 + 8), rel=0.01)
    one = template(aten.gather.default, table, 1, indices(rows, 1))
    assert one.hbm_bytes == rows * (BURST + 4 + 8)


def remarks_of(program: Path) -> list[str]:
    run = simulated(program, machine="h100-sxm:1", data=False).run
    lines = [line for ask in run.remarks for line in ask()]
    return [line for line in lines if "elements that indices choose" in line]


def test_the_report_says_what_is_assumed_of_indices(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    lines = [
        "import torch",
        "rows = torch.arange(4096, device='cuda')",
        "torch.zeros(4096, 64, device='cuda')[rows]",
    ]
    program.write_text("\n".join(lines))
    # Rows of whole bursts lie where they lie.
    assert not remarks_of(program)
    lines.append("torch.zeros(1 << 24, device='cuda')[rows.repeat(64)]")
    program.write_text("\n".join(lines))
    (said,) = remarks_of(program)
    assert said.endswith(": aten.index")


def test_parts_of_bursts_are_read_before_they_are_written() -> None:
    count = MIB
    table, chosen, values = empty(256 * MIB), [indices(count)], empty(count)
    value = count * 12
    result = template(aten.index_put_.default, table, chosen, values)
    assert result.hbm_bytes == pytest.approx(value + 2 * count * BURST, rel=0.01)
    copied = template(aten.index_put.default, table, chosen, values)
    assert copied.hbm_bytes == result.hbm_bytes + 2 * table.nbytes
    rows, values = empty(MIB, 64), empty(4096, 64)
    whole = template(aten.index_copy_.default, rows, 0, indices(4096), values)
    added = template(aten.index_add_.default, rows, 0, indices(4096), values)
    assert whole.hbm_bytes == pytest.approx(2 * values.nbytes + 4096 * 8, rel=0.01)
    assert added.hbm_bytes == pytest.approx(3 * values.nbytes + 4096 * 8, rel=0.01)


def test_one_index_of_no_dims_is_one_element() -> None:
    table, index = empty(256 * MIB), indices()
    for func in (aten.gather.default, aten.index_select.default):
        assert template(func, table, 0, index).hbm_bytes == BURST + 4 + 8
    written = template(aten.scatter_.value, table, 0, index, 1.0)
    assert written.hbm_bytes == 2 * BURST + 8
    assert template(aten.gather.default, empty(), 0, index).hbm_bytes > 0


def test_rows_of_sparse_tensors_are_streams() -> None:
    table, chosen = torch.eye(8).to_sparse(), torch.tensor([1, 2])
    assert template(aten.index_select.default, table, 0, chosen).hbm_bytes > 0


def test_masks_and_nothing_at_all_are_streams() -> None:
    table = empty(1024, 8)
    mask = empty(1024, dtype=torch.bool)
    assert template(aten.index_put_.default, table, [mask], empty(1)).hbm_bytes > 0
    nothing = template(aten.index.Tensor, empty(8, 0), [indices(0)])
    assert nothing.hbm_bytes == 0
    assert template(aten.gather.default, empty(8, 8), 1, indices(0, 8)).hbm_bytes == 0
