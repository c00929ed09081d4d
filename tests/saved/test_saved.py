"""A saved run is read back as what was saved, and what is no saved run is refused."""

from __future__ import annotations

import io
import json
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kernbench import RuntimeContext, ops
from kernbench.analysis import critical_path
from kernbench.errors import UsageError
from kernbench.hardware import load_machine, machine_data, machine_of_data
from kernbench.memory import AllocationLog
from kernbench.report import build_report, dump_trace
from kernbench.saved import load_run, save_run
from kernbench.saved.allocations import table_of


def work(rank: int, torch: Any) -> None:
    torch.distributed.init_process_group()
    side = torch.ahbm.Stream()
    x = torch.randn(256, 256)
    for _ in range(1 + rank):
        x = x @ x
    with torch.ahbm.stream(side):
        side.wait_stream(torch.ahbm.default_stream())
        y = ops.gelu(x)
    torch.distributed.all_reduce(x @ x)
    torch.ahbm.synchronize()
    y.numpy()


@cache
def example() -> RuntimeContext:
    with RuntimeContext(machine="ahbm:2", ranks=2) as torch:
        torch.multiprocessing.spawn(work, (torch,), nprocs=2)
    return torch


def saved_bytes(torch: RuntimeContext) -> bytes:
    out = io.BytesIO()
    report = {**torch.report(), "wall_s": 0.0}
    save_run(out, torch.op_log, torch.machine, report, program="bench.py")
    return out.getvalue()


def write(folder: Path, data: bytes) -> Path:
    path = folder / "run"
    path.write_bytes(data)
    return path


@pytest.mark.adr("0152-D1")
def test_a_saved_run_is_read_back_as_it_was(tmp_path: Path) -> None:
    torch = example()
    run = load_run(write(tmp_path, saved_bytes(torch)))
    log = torch.op_log
    assert run.log.to_arrow().equals(log.to_arrow())
    assert run.log.host_spans == log.host_spans
    assert run.log.sites == log.sites
    value, kept = (
        [instance.template.launched_with for instance in some.instances] for some in (log, run.log)
    )
    assert kept == value
    assert {"itemsize": 4} in kept
    assert run.log.woken == log.woken
    assert {Path(file).name for file, _ in log.sites[max(log.sites)]} == {"test_saved.py"}
    assert critical_path(run.log) == critical_path(log)
    reports = [
        build_report(item, machine, ranks=2, wall_s=0.0)
        for item, machine in ((run.log, run.machine), (log, torch.machine))
    ]
    assert reports[0] == reports[1]
    assert (run.program, run.ranks, run.report["time_ns"]) == ("bench.py", 2, log.end_ps / 1000)
    traces = []
    for item, machine in ((run.log, run.machine), (log, torch.machine)):
        with io.BytesIO() as out:
            dump_trace(item, machine, out)
            traces.append(json.loads(out.getvalue()))
    assert traces[0] == traces[1]


@pytest.mark.adr("0152-D2")
def test_a_saved_run_holds_the_sources_that_its_lines_are_of(tmp_path: Path) -> None:
    run = load_run(write(tmp_path, saved_bytes(example())))
    files = set(run.log.to_arrow()["file"].to_pylist()) - {""}
    assert set(run.sources) == files
    assert all(Path(file).read_text() == text for file, text in run.sources.items())


def test_equal_runs_are_saved_as_equal_bytes() -> None:
    assert saved_bytes(example()) == saved_bytes(example())


def test_equal_texts_have_one_code_whatever_objects_they_are() -> None:
    log = AllocationLog()
    for line in (3, 4):
        # Not one object, as a literal would be.
        module = "".join(["model", ".layer"])
        log.began(0, 0, 512, 512, 0, "x", (4,), "float16", module, "a.py", line)
    column = table_of(log).column("module").combine_chunks()
    assert column.to_pylist() == ["model.layer"] * 2
    assert len(column.dictionary) == 1


@pytest.mark.parametrize("name", ["ahbm-mesh:4x4", "h100-sxm", "mi300x:4"])
def test_machines_survive_as_data(name: str) -> None:
    machine = load_machine(name)
    read = machine_of_data(json.loads(json.dumps(machine_data(machine))), "it")
    assert read.spec == machine.spec
    assert (read.num_sips, read.shape, read.links) == (
        machine.num_sips,
        machine.shape,
        machine.links,
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"{}", "is no run saved"),
        (b"PK\x03\x04 not really", "is no run saved"),
    ],
)
def test_what_is_no_saved_run_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_run(write(tmp_path, data))


def test_a_missing_a_truncated_and_a_damaged_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_run(tmp_path / "none")
    with pytest.raises(UsageError, match="name a run"):
        load_run("")
    data = saved_bytes(example())
    for part in (100, len(data) // 2, len(data) - 10):
        with pytest.raises(UsageError, match="damaged"):
            load_run(write(tmp_path, data[:part]))
    middle = len(data) // 3
    changed = data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]
    with pytest.raises(UsageError, match="damaged"):
        load_run(write(tmp_path, changed))


@pytest.mark.adr("0152-D3")
def test_a_run_of_another_format_is_refused_by_its_version(tmp_path: Path) -> None:
    path = write(tmp_path, saved_bytes(example()))
    with zipfile.ZipFile(path) as archive:
        about = json.loads(archive.read("run.json"))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("run.json", json.dumps({**about, "format": 99, "kernbench": "7.0"}))
    with pytest.raises(UsageError, match=r"kernbench 7\.0 saved this run in format 99"):
        load_run(path)
