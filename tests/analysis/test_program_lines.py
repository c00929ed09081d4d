"""What the lines of a program caused adds up, and each thing is of the line that caused it."""

from __future__ import annotations

import io
import linecache
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from kernbench import RuntimeContext, ops
from kernbench.analysis import explain, kernel_lines, print_program_lines, program_lines
from kernbench.cli.app import app
from kernbench.errors import UsageError
from kernbench.inputs import source_texts
from kernbench.report import format_ns
from kernbench.runtime_api import LineRecorder
from kernbench.saved import load_run, save_run

RANKS, WIDTH, TIMES = 2, 128, 3
BYTES = WIDTH * WIDTH * 2


def doubled(x: Any) -> Any:
    return ops.add(x, x)  # in a function


def work(rank: int, torch: Any) -> None:
    torch.distributed.init_process_group()
    x = torch.zeros(WIDTH, WIDTH, dtype="f16")  # filled
    side = torch.ahbm.Stream()
    for _ in range(TIMES):
        x = x @ x  # products
    torch.distributed.all_reduce(x)  # reduced
    with torch.ahbm.stream(side):
        y = doubled(x)
    torch.ahbm.default_stream().wait_stream(side)
    torch.ahbm.synchronize()  # waited for
    del y


def line_with(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


def made(**options: Any) -> RuntimeContext:
    options = {"record_lines": True, "record_memory": True, **options}
    with RuntimeContext(f"ahbm:{RANKS}", RANKS, data=False, **options) as torch:
        torch.multiprocessing.spawn(work, (torch,), nprocs=RANKS)
    return torch


@cache
def example() -> RuntimeContext:
    return made()


def by_line(torch: RuntimeContext) -> dict[int, Any]:
    program_line = program_lines(torch.op_log, RANKS)["lines"]
    assert {item["file"] for item in program_line} <= {__file__, ""}
    return {item["line"]: item for item in program_line}


@pytest.mark.adr("0172-D1")
def test_what_lines_caused_adds_up_to_the_run() -> None:
    log = example().op_log
    lines = program_lines(log, RANKS)
    whole = lines["all"]
    for name, value in whole.items():
        caused = [line[name] for line in lines["lines"]]  # type: ignore[literal-required]
        assert sum(caused) == pytest.approx(value)
    assert whole["critical_path_ns"] == lines["time_ns"] == log.end_ps / 1000
    times_ps = [
        end - start
        for instance in log.instances
        for start, end in zip(instance.starts_ps, instance.ends_ps, strict=True)
    ]
    assert (whole["launches"], whole["device_ns"]) == (len(times_ps), sum(times_ps) / 1000)
    for name, is_wait in (("host_ns", False), ("wait_ns", True)):
        spans = [host_span for host_span in log.host_spans if (host_span.kind == "wait") is is_wait]
        assert whole[name] == sum(span.end_ps - span.start_ps for span in spans) / 1000  # type: ignore[literal-required]
    assert whole["communicated_bytes"] == RANKS * BYTES
    assert log.allocations is not None
    assert whole["allocated_bytes"] == sum(entry.size_bytes for entry in log.allocations.entries)


@pytest.mark.adr("0172-D1")
def test_commands_are_of_the_line_that_launched_them_on_any_stream() -> None:
    lines = by_line(example())
    launched = {name: lines[line_with(name)] for name in (
        "filled", "products", "in a function", "reduced", "waited for")}  # fmt: skip
    counts = {name: value["launches"] // RANKS for name, value in launched.items()}
    assert counts == {
        "filled": 1, "products": TIMES, "in a function": 1, "reduced": 1, "waited for": 0,
    }  # fmt: skip
    assert launched["reduced"]["communicated_bytes"] == RANKS * BYTES
    assert launched["products"]["allocated_bytes"] == RANKS * TIMES * BYTES
    assert launched["waited for"]["wait_ns"] > 0
    kernels = [
        instance for instance in example().op_log.instances if instance.template.name == "matmul"
    ]
    device_ps = sum(kernel.ends_ps[0] - kernel.starts_ps[0] for kernel in kernels)
    assert launched["products"]["device_ns"] == device_ps / 1000
    host_ns = float(example().machine.sip.host_launch_us) * 1000
    assert launched["products"]["host_ns"] == RANKS * TIMES * host_ns


@pytest.mark.adr("0172-D3")
def test_a_run_that_is_not_asked_is_the_same_and_says_so(tmp_path: Path) -> None:
    plain = made(record_lines=False, record_memory=False)
    assert plain.op_log.to_arrow().equals(example().op_log.to_arrow())
    assert plain.op_log.program_lines is None
    with pytest.raises(UsageError, match="lines; run the program again") as refused:
        program_lines(plain.op_log, RANKS)
    assert "that retime has made has none" in str(refused.value)
    with (tmp_path / "run").open("wb") as out:
        save_run(out, plain.op_log, plain.machine, plain.report())
    assert load_run(tmp_path / "run").log.program_lines is None
    said = CliRunner().invoke(app, ["why", str(tmp_path / "run"), "--lines"])
    assert said.exit_code == 2


@pytest.mark.adr("0172-D3")
def test_a_saved_run_has_the_lines_and_their_source(tmp_path: Path) -> None:
    torch = example()
    with (tmp_path / "run").open("wb") as out:
        save_run(out, torch.op_log, torch.machine, torch.report())
    run = load_run(tmp_path / "run")
    assert program_lines(run.log, RANKS) == program_lines(torch.op_log, RANKS)
    assert run.sources[__file__] == Path(__file__).read_text()
    for arguments in (["--lines"], ["--lines", "--json", str(tmp_path / "json")]):
        wide = CliRunner(env={"COLUMNS": "160"})
        said = wide.invoke(app, ["why", str(tmp_path / "run"), *arguments])
        assert said.exit_code == 0, said.output
        assert "x = x @ x  # products" in said.output
    (row,) = (line for line in said.output.splitlines() if "# products" in line)
    assert row.split()[0] == str(line_with("products"))
    assert '"critical_path_device_ns"' in (tmp_path / "json").read_text()


@pytest.mark.parametrize("width", [30, 80, 160])
def test_tables_of_lines_have_any_width(width: int) -> None:
    lines = program_lines(example().op_log, RANKS)
    out = io.StringIO()
    print_program_lines(lines, source_texts([__file__]), Console(file=out, width=width))
    line = by_line(example())[line_with("products")]
    (row,) = (item for item in out.getvalue().splitlines()
              if item.split()[:1] == [str(line["line"])])  # fmt: skip
    for name in ("critical_path_ns", "device_ns"):
        assert format_ns(line[name]) in row
    assert ("192.00 KiB" in row) == (width == 160)


KERNELS = """
import triton
import triton.language as tl

@triton.jit
def scaled(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at) * 3)

def scale(torch, name):
    x, y = torch.ones(64), torch.ones(64)
    torch.launch(name, scaled, x, y, grid=(1,), BLOCK=64)
"""


def test_one_text_in_two_folders_is_shown_where_it_was_launched(tmp_path: Path) -> None:
    modules = {}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "kernels.py"
        path.write_text(KERNELS)
        modules[name] = module = ModuleType(name)
        module.__file__ = str(path)
        linecache.checkcache(str(path))
        exec(compile(KERNELS, str(path), "exec"), module.__dict__)
    with RuntimeContext(data=False, record_lines=True) as torch:
        # The second one is found in Triton's cache, where it has the first one's path.
        for name, module in modules.items():
            module.scale(torch, name)
    with (tmp_path / "run").open("wb") as out:
        save_run(out, torch.op_log, torch.machine, torch.report())
    run = load_run(tmp_path / "run")
    for name in modules:
        file = str(tmp_path / name / "kernels.py")
        for log in (torch.op_log, run.log):
            assert {item["file"] for item in kernel_lines(log, name)["lines"]} == {file}
            launches = [item["launches"] for item in program_lines(log, 1)["lines"]
                        if item["file"] == file]  # fmt: skip
            assert sum(launches) == 3  # two fills and the kernel
        assert run.sources[file] == KERNELS


@pytest.mark.adr("0172-D1")
def test_segments_of_the_critical_path_and_the_time_of_hosts_and_copies_have_lines() -> None:
    torch = example()
    why = explain(torch.op_log, torch.machine, RANKS)
    on_path: dict[int, float] = {}
    for item in why["critical_path"]:
        on_path[item["line"]] = on_path.get(item["line"], 0) + item["end_ns"] - item["start_ns"]
    known = by_line(torch)
    assert {line for line, ns in on_path.items() if ns} == {
        line for line, value in known.items() if value["critical_path_ns"]
    }
    for line, time_ns in on_path.items():
        assert time_ns == pytest.approx(known[line]["critical_path_ns"])
    products = line_with("products")
    assert {entry["line"] for entry in why["spent"] if entry["name"] == "matmul"
            and entry["resource"] == "host launch"} == {products}  # fmt: skip
    unknown = explain(made(record_lines=False).op_log, torch.machine, RANKS)
    assert {
        entry["line"] for entry in unknown["critical_path"] if entry["kind"] != "collective"
    } == {0}


def interleaved(rank: int, torch: Any) -> None:
    torch.distributed.init_process_group()
    x = torch.zeros(WIDTH, WIDTH, dtype="f16")
    for _ in range(TIMES):
        y = ops.gelu(x)
        ops.add(y, x, out=y)
        empty = ops.gelu(x[:0])
        if rank:
            x = torch.empty(WIDTH, WIDTH, dtype="f16")
        ops.add(y, y, out=x)
        torch.distributed.all_reduce(x)
        x.fill_(1.0)
        del empty


def test_lines_that_are_known_are_those_that_stacks_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation looks once for its result and its launch."""

    def noted() -> tuple[Any, ...]:
        with RuntimeContext("ahbm:4", 4, data=False, record_lines=True, record_memory=True) as run:
            run.multiprocessing.spawn(interleaved, (run,), nprocs=4)
        lines = run.op_log.program_lines
        assert lines is not None
        named = [lines.sites[number] for number in lines.of_spans]
        return named, {key: lines.sites[number] for key, number in lines.of_commands.items()}

    walks: list[int] = []
    monkeypatch.setattr(LineRecorder, "innermost", _counted(LineRecorder.innermost, walks))
    known = noted()
    num_walks = len(walks)
    monkeypatch.setattr(LineRecorder, "that_made", lambda *_: 0)
    assert noted() == known
    assert len(walks) - num_walks == num_walks + 4 * TIMES


def _counted(function: Any, calls: list[int]) -> Any:
    def counted(*args: Any) -> Any:
        calls.append(1)
        return function(*args)

    return counted
