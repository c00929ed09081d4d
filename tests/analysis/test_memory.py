"""What a run had in memory: the peak is the allocator's, and what was alive adds up to it."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from kernbench import RuntimeContext, tp
from kernbench.analysis import memory_curve, memory_use, peak_line, print_memory
from kernbench.errors import UsageError
from kernbench.memory import Phase
from kernbench.saved import load_run, save_run

RANKS, TOKENS, WIDTH = 2, 64, 256


def work(rank: int, torch: Any, peaks: list[int]) -> None:
    torch.distributed.init_process_group()
    tp.initialize_model_parallel(RANKS)
    up = tp.ColumnParallelLinear(WIDTH, 4 * WIDTH, bias=False)
    down = tp.RowParallelLinear(4 * WIDTH, WIDTH, bias=False)
    x = torch.zeros(TOKENS, WIDTH, dtype="f16")
    grad = down.backward(down(up(x)))
    up.backward(grad)
    peaks[rank] = torch.ahbm.max_memory_allocated()


@cache
def example() -> tuple[RuntimeContext, list[int]]:
    peaks = [0] * RANKS
    with RuntimeContext(f"ahbm:{RANKS}", RANKS, data=False, record_memory=True) as torch:
        torch.multiprocessing.spawn(work, (torch, peaks), nprocs=RANKS)
    return torch, peaks


@pytest.mark.adr("0157-D1")
def test_the_peak_is_the_allocators_and_its_parts_add_up() -> None:
    torch, peaks = example()
    use = memory_use(torch.op_log)
    assert [item["peak_bytes"] for item in use["ranks"]] == peaks
    for rank in range(RANKS):
        peak: Any = memory_use(torch.op_log, rank)["peak"]
        assert (peak["rank"], peak["bytes"]) == (rank, peaks[rank])
        for parts in ("phases", "modules", "lines"):
            assert sum(item["bytes"] for item in peak[parts]) == peaks[rank]
        assert {item["file"].rpartition("/")[2] for item in peak["tensors"]} == {"test_memory.py"}


def test_layers_say_what_their_tensors_are_for() -> None:
    torch, _ = example()
    phases = {item["name"]: item["bytes"] for item in memory_use(torch.op_log)["peak"]["phases"]}
    shards = 2 * 2 * WIDTH * 4 * WIDTH // RANKS
    assert phases["weights"] == shards
    assert phases["gradients"] == shards
    assert torch.op_log.allocations is not None
    kept = [
        entry.asked_bytes
        for entry in torch.op_log.allocations.entries
        if entry.rank == 0 and entry.phase is Phase.ACTIVATIONS
    ]
    assert sum(kept) == 2 * TOKENS * (WIDTH + 4 * WIDTH // RANKS)
    modules = {str(entry.module) for entry in torch.op_log.allocations.entries}
    assert modules == {"", "ColumnParallelLinear", "RowParallelLinear"}


def test_a_cache_says_that_it_is_one() -> None:
    with RuntimeContext(data=False, record_memory=True) as torch:
        keys, values = (torch.zeros(1, 2, 16, 32, dtype="f16") for _ in range(2))
        heads = tp.Heads(num_heads=2, num_key_heads=2, size=32)
        tp.CachedAttention(keys, values, heads, 1)
        result = memory_use(torch.op_log)["peak"]["phases"]
    assert result == [{"name": "KV cache", "bytes": 2 * keys.nbytes, "tensors": 2}]


def test_marks_rise_to_the_peak_and_the_curve_has_it() -> None:
    torch, peaks = example()
    for item in memory_use(torch.op_log)["ranks"]:
        marks = [size for _, size in item["high_water"]]
        assert marks == sorted(set(marks))
        assert item["high_water"][-1] == (item["peak_ns"], item["peak_bytes"])
        assert max(size for _, size in item["in_use"]) == item["peak_bytes"]
        assert [end for end, _ in item["in_use"]][-1] == torch.op_log.end_ps / 1000
        times_ps, sizes = memory_curve(torch.op_log, item["rank"], item["device"])
        assert (np.diff(times_ps) >= 0).all()
        assert sizes.max() == peaks[item["rank"]]
        assert sizes[-1] == 0  # all is freed in the end


@pytest.mark.adr("0157-D4")
def test_a_saved_run_has_what_it_allocated(tmp_path: Any) -> None:
    torch, _ = example()
    for name, log in (("with", torch.op_log), ("without", RuntimeContext().op_log)):
        with (tmp_path / name).open("wb") as out:
            save_run(out, log, torch.machine, torch.report())
    assert memory_use(load_run(tmp_path / "with").log) == memory_use(torch.op_log)
    with pytest.raises(UsageError, match="no record of its memory; run the program again"):
        memory_use(load_run(tmp_path / "without").log)


def test_tables_have_any_width(capsys: pytest.CaptureFixture[str]) -> None:
    torch, _ = example()
    for width in (30, 80, 160):
        out = io.StringIO()
        print_memory(memory_use(torch.op_log), Console(file=out, width=width))
        for said in ("weights", "ColumnParallelLinear", "test_memory.py:", "█"):
            assert said in out.getvalue() or width == 30
    (line,) = peak_line(torch.op_log)
    assert line.startswith("in memory at the peak of rank 0, ")
    assert "weights 512.00 KiB" in line


def test_what_is_not_there_is_an_error() -> None:
    torch, _ = example()
    with pytest.raises(UsageError, match="rank 7 allocated nothing on a device; ranks that did: 0"):
        memory_use(torch.op_log, 7)
    with pytest.raises(UsageError, match="rank 0 allocated nothing on device 1"):
        memory_curve(torch.op_log, 0, 1)
    torch.op_log.running = (0,)
    with pytest.raises(UsageError, match="rank 7 did not run, as the run was folded; ranks that"):
        memory_use(torch.op_log, 7)
    with RuntimeContext(record_memory=True) as idle:
        pass
    with pytest.raises(UsageError, match="nothing was allocated"):
        memory_use(idle.op_log)
    assert peak_line(idle.op_log) == peak_line(RuntimeContext().op_log) == []
