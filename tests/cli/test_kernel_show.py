from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kernbench.cli.app import app
from kernbench.cli.kernel_show import ttir_lines
from kernbench.cli.programs.kernel_capture import capture
from kernbench.hardware import load_machine
from kernbench.kernel_time import outline_kernel
from kernbench.report import format_ns
from tests.programs import PROGRAMS
from tests.tiers import daily

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("KERNBENCH_DEBUG", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    shutil.copy(PROGRAMS / "shown_kernels.py", tmp_path / "bench.py")
    shutil.copy(PROGRAMS / "shown_script.py", tmp_path / "script.py")

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as status:
            app(["kernel", "show", *arguments])
        out, err = capsys.readouterr()
        return int(status.value.code or 0), out, err

    return call


def section(text: str, title: str) -> list[str]:
    """Return the lines under the first title that begins with ``title``."""
    lines = text.splitlines()
    start = next(
        index
        for index, line in enumerate(lines)
        if line.startswith(title) and lines[index + 1] == "-" * len(line)
    )
    rest = lines[start + 2 :]
    return rest[: rest.index("")] if "" in rest else rest


@pytest.mark.adr("0052-D1")
def test_the_first_launch_is_shown_from_signature_to_schedule(show: Run) -> None:
    status, out, err = show("bench.py:accumulate")
    assert (status, err) == (0, "")
    assert "the bench speaks" not in out
    assert out.startswith("kernel accumulate at bench.py:")
    assert "grid 2 x 1 x 1: 2 programs; num_warps 4, num_stages 2" in out
    signature = dict(line.split(maxsplit=1) for line in section(out, "signature"))
    assert signature["x"] == "*fp32"
    assert signature["n"].split() == ["i32", "=", "256"]
    assert signature["BLOCK"].split() == ["constexpr", "=", "32"]
    assert any("tt.load" in line and "bench.py:13" not in line for line in section(out, "TTIR"))
    assert "loc(" not in out
    assert "--all shows every distinct one" in out


@pytest.mark.adr("0052-D1")
def test_commands_are_a_tree_with_loops_and_source_lines(show: Run) -> None:
    _, out, _ = show("bench.py:accumulate")
    commands = section(out, "commands of one program")
    source = (PROGRAMS / "shown_kernels.py").read_text().splitlines()
    where = {line.rsplit(maxsplit=1)[1] for line in commands}
    load = 1 + next(i for i, line in enumerate(source) if "tl.load(x + offsets" in line)
    assert f"bench.py:{load}" in where
    loop = next(line for line in commands if line.startswith("loop"))
    assert loop.split()[1:5] == ["4", "times,", "2", "stages:"]
    kinds = [line.split()[0] for line in commands if not line.startswith("    ")]
    assert kinds[0] == "loop"
    assert "  dma_in   " in "\n".join(commands), "what is in the loop is indented"
    assert kinds[-1] == "dma_out"
    assert any("print 'total:'" in line for line in commands)


@pytest.mark.adr("0052-D2")
def test_the_schedule_of_one_program_and_of_the_grid_say_where_time_goes(show: Run) -> None:
    _, out, _ = show("bench.py:accumulate")
    program = section(out, "program 0 on one PE")
    engines = [line.split()[0] for line in program if " busy " in line]
    assert engines == ["dma_in", "math", "dma_out"]
    bars = [line.split("|")[1] for line in program if "|" in line]
    assert len({len(bar) for bar in bars}) == 1
    assert bars[0].startswith("#"), "the first load begins with the program"
    assert bars[-1].endswith("#"), "the store ends it"
    grid = section(out, "grid")
    assert grid[0].strip().startswith("2 programs on 32 PEs: 1 wave")
    assert [line.split()[0] for line in grid[1:]] == [
        "compute",
        "HBM",
        "latency",
        "launch",
        "bound",
    ]
    assert grid[-1].split()[-1] == "launch"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(
    show: Run, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = show("bench.py:accumulate")
    commands = section(out, "commands") + section(out, "TTIR") + section(out, "TCM")
    assert max(map(len, commands)) <= columns
    if columns >= 80:
        assert max(map(len, out.splitlines())) <= columns
    assert "\x1b" not in out, "only a terminal gets colours"


def test_all_shows_each_distinct_launch_and_forgives_checks_without_data(show: Run) -> None:
    status, out, err = show("--all", "bench.py:accumulate")
    assert (status, err) == (0, "")
    assert out.count("\nkernel accumulate") + out.startswith("kernel accumulate") == 2
    assert "(1 of 2)" in out
    assert "(2 of 2)" in out
    assert "The program ended early (it ran without data): " in out


def test_arguments_reach_a_bench_and_a_program(show: Run) -> None:
    _, out, _ = show("bench.py:accumulate", "--arg", "block=16", "-a", "n=512")
    assert "grid 8 x 1 x 1: 8 programs" in out
    _, out, _ = show("script.py:accumulate", "--arg", "64")
    assert "TCM: 768 B of" in out or "64xf32" in out
    status, _, err = show("bench.py:accumulate", "--arg", "blok=16")
    assert status == 2
    assert "did you mean block" in err


def test_a_kernel_that_goes_where_data_says_is_shown_as_far_as_it_is_known(show: Run) -> None:
    status, out, _ = show("bench.py:pick")
    assert status == 0
    assert "out[%" in "\n".join(section(out, "commands"))


@pytest.mark.adr("0052-D3")
def test_ttir_of_a_production_cache_is_shown_as_far_as_text_goes(show: Run, tmp_path: Path) -> None:
    show("bench.py:accumulate")
    [result] = (tmp_path / "triton").rglob("accumulate.ttir")
    status, out, _ = show(str(result), "--num-stages", "4")
    assert status == 0
    assert out.startswith("kernel accumulate, num_stages 4")
    assert "!tt.ptr<f32>" in "\n".join(section(out, "signature"))
    assert "2 x load 32xf32" in "\n".join(section(out, "TCM"))
    assert "commands" not in out


@pytest.mark.parametrize(
    ("arguments", "expected", "said"),
    [
        (["bench.py:acumulate"], 2, "no kernel acumulate in bench.py: did you mean accumulate?"),
        (
            ["bench.py:unused"],
            2,
            "bench.py never launches unused with these arguments: it launches",
        ),
        (
            ["script.py:unused", "--arg", "8"],
            2,
            "it launches accumulate; pass other arguments with --arg",
        ),
        (["bench.py"], 2, "name a kernel as FILE:NAME"),
        (["bench.py:"], 2, "name a kernel as FILE:NAME"),
        (["bnch.py:accumulate"], 2, "no bench bnch.py: did you mean bench.py"),
        (["script.py:accumulate", "--arg", "many"], 1, "ValueError: invalid literal for int()"),
        (["bench.py:accumulate", "--machine", "ahmb"], 2, "did you mean ahbm"),
        (["missing.ttir"], 2, "there is no file missing.ttir"),
        (["broken.ttir"], 1, "TTIR text, line 1"),
        (["binary.ttir"], 2, "binary.ttir is not TTIR"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(
    show: Run, tmp_path: Path, arguments: list[str], expected: int, said: str
) -> None:
    (tmp_path / "broken.ttir").write_text("module {{")
    (tmp_path / "binary.ttir").write_bytes(b"\xff\xfe\x00")
    status, _, err = show(*arguments)
    assert status == expected, err
    assert said in err


def test_locations_lead_to_lines_through_names_and_calls() -> None:
    text = "\n".join(
        [
            '#loc = loc("/a/k.py":3:1)',
            "module {",
            '  tt.func @k(%x: i32 loc("x"(#loc))) {',
            "    %y = arith.addi %x, %x : i32 loc(#loc2)",
            "    tt.return loc(#loc9)",
            "  } loc(#loc)",
            "} loc(unknown)",
            '#loc1 = loc("/a/k.py":7:5)',
            '#loc2 = loc("y"(#loc1))',
            "#loc9 = loc(#loc9)",
        ]
    )
    lines = ttir_lines(text, 60)
    assert lines[1] == "  tt.func @k(%x: i32) {"
    assert lines[2].split() == ["%y", "=", "arith.addi", "%x,", "%x", ":", "i32", "k.py:7"]
    assert len(lines[2]) == 60
    assert lines[3] == "    tt.return"
    assert lines[-1] == "}"
    assert not any("loc" in line for line in lines)


@pytest.fixture
def deciding(show: Run, tmp_path: Path) -> Run:
    shutil.copy(PROGRAMS / "deciding_kernels.py", tmp_path / "deciding.py")
    return show


@pytest.mark.adr("0052-D4")
def test_a_kernel_that_decides_by_data_is_shown_with_what_it_did(deciding: Run) -> None:
    status, out, err = deciding("deciding.py:sum_ragged")
    assert (status, err) == (0, "")
    trip_counts = {}
    for program, others in ((0, ""), (1, " and 1 other"), (3, "")):
        lines = section(out, f"commands of program {program}{others}")
        loaded, summed = (line.split() for line in lines if line.startswith("loop"))
        assert loaded[1] == "once;"
        trip_counts[program] = int(summed[1])
    assert trip_counts == {0: 1, 1: 2, 3: 8}
    assert "The program ran on data" in out


@pytest.mark.adr("0052-D4")
def test_programs_that_each_took_a_path_of_their_own_are_shown_as_far_as_one_can_read(
    deciding: Run,
) -> None:
    status, out, _ = deciding("deciding.py:take_turns")
    assert status == 0
    assert out.count("\ncommands of program") == 8
    assert "4 more paths, each of its own programs, not shown." in out


@pytest.mark.adr("0052-D4")
def test_a_kernel_after_one_that_decides_by_data_is_found(deciding: Run) -> None:
    status, out, _ = deciding("deciding.py:double")
    assert status == 0
    assert "grid 12 x 1 x 1" in out


@pytest.mark.slow
@pytest.mark.adr("0052-D5")
@pytest.mark.parametrize("machine", daily("h100-sxm", of=("ahbm", "h100-sxm", "a100-sxm-80g")))
def test_the_time_shown_is_the_time_of_the_launch_in_a_run(
    show: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], machine: str
) -> None:
    shutil.copy(PROGRAMS / "timed_kernels.py", tmp_path / "timed.py")
    with pytest.raises(SystemExit):
        app(["run", "timed.py", "--machine", machine, "--json", "-"])
    report = json.loads(capsys.readouterr().out)
    kernels = {item["name"]: item["time_ns"] for item in report["kernels"]}
    assert kernels.keys() == {"square", "copy_columns", "ragged"}
    for name, time_ns in kernels.items():
        _, out, _ = show(f"timed.py:{name}", "--machine", machine)
        assert f"\ngrid: {format_ns(time_ns)}\n" in out
        parts = {line.split()[0] for line in section(out, "grid")[1:]}
        assert ("clock" in parts) == (machine != "ahbm" and name == "square")


@pytest.mark.adr("0052-D5")
def test_the_parts_of_a_launch_add_up_to_its_time() -> None:
    path = str(PROGRAMS / "timed_kernels.py")
    for name in ("square", "copy_columns", "ragged"):
        (launch,) = capture(path, name, (), "h100-sxm", None, only_first=True).launches
        machine = load_machine("h100-sxm", 1)
        outline = outline_kernel(launch.trace, machine, launch.sip_id, launch.conditions)
        assert outline.time.duration_ps == launch.template.duration_ps


def test_a_kernel_that_talks_to_other_ranks_has_no_schedule_of_its_own(show: Run) -> None:
    status, _, err = show("oneshot_allreduce:one_shot", "--ranks", "2", "-a", "sizes_kib=1")
    assert status == 2
    assert "kernel one_shot talks to other SIPs" in err
    assert "--log" in err
