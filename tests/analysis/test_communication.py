"""The communication matrix against closed forms."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from kernbench import RuntimeContext
from kernbench.analysis import communication, print_communication
from tests.logs import LogBuilder, ring
from tests.page.runs import simulated


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_an_all_gather_in_a_ring_sends_all_but_one_chunk_to_the_next_rank(ranks: int) -> None:
    builder = LogBuilder()
    for _ in range(3):
        builder.collective(ring(ranks, chunk_bytes=512), range(ranks), [0] * ranks)
    matrix = np.array(communication(builder.log, ranks)["bytes"])
    expected = np.roll(np.eye(ranks, dtype=int), 1, axis=1) * 3 * 512 * (ranks - 1)
    assert (matrix == expected).all()


def test_a_group_counts_where_its_ranks_are() -> None:
    builder = LogBuilder()
    builder.collective(ring(2), (1, 3), (0, 0))
    matrix = np.array(communication(builder.log, 4)["bytes"])
    assert {
        (int(source), int(target)): int(matrix[source, target])
        for source, target in zip(*np.nonzero(matrix), strict=True)
    } == {(1, 3): 512, (3, 1): 512}


def test_neighbours_share_a_cell_where_there_are_many() -> None:
    builder = LogBuilder()
    builder.collective(ring(200), range(200), [0] * 200)
    result = communication(builder.log, 200)
    assert (result["ranks_per_cell"], len(result["bytes"])) == (4, 50)
    assert np.array(result["bytes"]).sum() == result["total_bytes"] == 200 * 199 * 512


def test_as_many_cells_are_printed_as_the_console_has_room_for() -> None:
    builder = LogBuilder()
    builder.collective(ring(64), range(64), [0] * 64)
    console = Console(file=io.StringIO(), width=60)
    print_communication(builder.log, 64, console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[1] == "2.06 MB sent between ranks"
    assert lines[3].split()[3:] == ["0-12", "13-25", "26-38", "39-51", "52-63"]
    assert max(map(len, lines)) <= 60


def test_hops_over_several_links_count_once(tmp_path: Path) -> None:
    # On a ring of four, rank 0 reaches rank 2 over two links.
    def work(rank: int, torch: Any) -> None:
        torch.distributed.init_process_group()
        x = torch.zeros(1024, dtype="f32")
        if rank == 0:
            torch.distributed.send(x, 2)
        elif rank == 2:
            torch.distributed.recv(x, 0)

    run = simulated(tmp_path / "run", work, ranks=4)
    result = communication(run.log, 4)
    assert result["bytes"][0][2] == result["total_bytes"] == 4096


def test_ranks_that_do_not_talk_send_nothing() -> None:
    with RuntimeContext(machine="ahbm") as torch:
        torch.randn(64, 64) @ torch.randn(64, 64)
    assert communication(torch.op_log, 1)["total_bytes"] == 0
