from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kernbench.cli.app import app
from tests.programs import PROGRAMS
from tests.tiers import of_campaigns

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNBENCH_DEBUG", raising=False)
    shutil.copy(PROGRAMS / "failing_bench.py", tmp_path / "bench.py")

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as status:
            app(list(arguments))
        out = capsys.readouterr()
        code = status.value.code
        assert isinstance(code, int)
        return code, out.out, out.err

    return call


def test_a_run_ends_with_the_tables_and_the_verdict(run: Run) -> None:
    status, out, err = run("run", "bench.py")
    assert status == 0
    assert out.startswith("the bench speaks\n")
    assert "exposed comm" in out
    assert "1 rank, " in out.splitlines()[-1]
    assert err == ""


@pytest.mark.adr("0011-D5")
def test_json_on_stdout_is_all_there_is_on_stdout(run: Run) -> None:
    status, out, err = run("run", "bench.py", "--json", "-", "--ranks", "2")
    assert status == 0
    report = json.loads(out)
    assert (report["machine"], report["ranks"], len(report["per_rank"])) == ("ahbm", 2, 2)
    assert "the bench speaks" in err
    assert "exposed comm" in err


def test_results_are_written_where_asked_in_folders_that_need_not_exist(
    run: Run, tmp_path: Path
) -> None:
    files = {"--log": "out/a/log.parquet", "--trace": "out/trace.json", "--json": "report.json"}
    status, out, err = run("run", "bench.py", *(text for pair in files.items() for text in pair))
    assert status == 0
    assert pq.read_table(tmp_path / "out/a/log.parquet").num_rows > 0
    assert json.loads((tmp_path / "out/trace.json").read_text())["traceEvents"]
    assert json.loads((tmp_path / "report.json").read_text())["ranks"] == 1
    assert "exposed comm" in out
    assert "ui.perfetto.dev" in err


@pytest.mark.adr("0011-D3")
@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ("check", 1, "check failed: "),
        ("assert", 1, "check failed: ones are not threes"),
        ("error", 1, "reshape_everything"),
        ("rank", 1, "error on rank 1: ValueError: bad luck\n  bench.py:"),
        ("interrupt", 130, "interrupted\n"),
        ("ctrl-c", 130, "interrupted\n"),
        ("speechless", 1, "Speechless: (its __str__ raised ZeroDivisionError)"),
        ("base", 1, "error: GeneratorExit: of no kind of Exception"),
        ("homeless", 1, "IndexRangeError: index 9 is out of range for dim 0 of size 4"),
        ("exit", 7, ""),
    ],
)
def test_a_failing_bench_has_its_own_status_and_no_traceback(
    run: Run, how: str, status: int, words: str
) -> None:
    done, out, err = run("run", "bench.py", "--param", f"how={how}", "--ranks", "2")
    assert done == status
    assert words in err
    assert "Traceback" not in err
    assert "src/kernbench" not in err
    assert "exposed comm" not in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench.py", "--machine", "ahmb"], "did you mean ahbm"),
        (["gemn"], "did you mean gemm"),
        (["missing.py"], "no bench missing.py"),
        (["bench.py", "--param", "sise=3"], "did you mean size"),
        (["bench.py", "--param", "size=three"], "must be int, but got 'three'"),
        (["bench.py", "--ranks", "0"], "at least 1"),
        (["bench.py", "--ranks", "99"], "99 ranks"),
        (["bench.py", "--ranks", "two"], "--ranks"),
        (["bench.py", "--machine", ""], "unknown machine ''"),
        (["bench.py", "--machine", "H100"], "did you mean h100-pcie or h100-sxm"),
        (["bench.py", "--json", "."], "is a folder"),
        (["bench.py", "--json", ""], "--json has an empty name"),
        (["bench.py", "--json", "bench.py"], "--json bench.py is "),
        (["bench.py", "--log", "bench.py/x"], "no folder can be made"),
        (["bench.py", "--log", "a", "--json", "./a"], "--log and --json both name ./a"),
        (["bench.py", "--trace", "-"], "only --json"),
        (["bench.py", "--colour"], "--colour"),
        ([], "name a program"),
    ],
)
def test_a_wrong_command_line_is_status_2_before_anything_runs(
    run: Run, arguments: list[str], words: str
) -> None:
    status, out, err = run("run", *arguments)
    assert status == 2
    assert words in err
    assert out == ""
    assert "Traceback" not in err


def test_a_bench_that_cannot_be_imported_shows_its_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\ndef run(torch): pass\n")
    status, _, err = run("run", "broken.py")
    assert status == 1
    assert "nowhere_to_be_found" in err
    assert "broken.py:1" in err
    (tmp_path / "broken.py").write_text("def run(torch:\n")
    assert run("run", "broken.py")[0] == 1


@pytest.mark.parametrize("how", ["option", "environment"])
def test_debug_shows_the_whole_traceback(
    run: Run, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "environment":
        monkeypatch.setenv("KERNBENCH_DEBUG", "1")
    status, _, err = run("run", "bench.py", "-p", "how=error", *["--debug"] * (how == "option"))
    assert status == 1
    assert "Traceback" in err


def test_help_of_a_bench_lists_its_parameters(run: Run) -> None:
    status, out, _ = run("run", "bench.py", "--help")
    assert status == 0
    assert out.startswith("Does it add up?")
    assert "  size: int = 4\n" in out
    assert "ranks: 1" in out


def test_help_of_run_names_the_benches(run: Run) -> None:
    status, out, _ = run("run", "--help")
    assert status == 0
    assert "--no-data" in out
    assert "tp_mlp" in out


def test_machines_are_listed_and_shown(run: Run) -> None:
    status, out, _ = run("machine", "list")
    assert status == 0
    assert "ahbm-mesh" in out
    status, out, _ = run("machine", "show", "ahbm:4")
    assert status == 0
    assert "4 SIPs" in out
    assert "hbm_bandwidth_gbps" in out
    status, _, err = run("machine", "show", "ahmb")
    assert status == 2
    assert "did you mean ahbm" in err


@pytest.mark.adr("0011-D6")
def test_the_command_starts_without_heavy_imports() -> None:
    code = (
        "import sys, kernbench.cli\n"
        "heavy = {'numpy', 'triton', 'pyarrow', 'simpy', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.adr("0275-D1")
@pytest.mark.adr("0275-D2")
@pytest.mark.adr("0290-D1")
def test_a_run_imports_no_other_command_and_nothing_that_it_does_not_do() -> None:
    rare = (
        *("kernbench.links", "kernbench.collectives", "kernbench.kernel_time.stepwise"),
        *("kernbench.interleaved", "kernbench.sanitizer.run", "kernbench.sanitizer.checks"),
        *("kernbench.report.perfetto", "kernbench.report.formats", "pyarrow", "numpy.ma"),
    )
    code = (
        "import sys\n"
        "from kernbench.cli.app import app\n"
        "app(['run', 'gemm', '--no-data', '--no-check'], standalone_mode=False)\n"
        "modules = [item for item in sys.modules.items() if not hasattr(item[1], '__path__')]\n"
        "commands = [name for name, _ in modules if name.startswith('kernbench.cli.commands.')]\n"
        f"print(*commands, *{set(rare)} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.split() == ["kernbench.cli.commands.run"]


def test_version_is_printed(run: Run) -> None:
    status, out, _ = run("--version")
    assert status == 0
    assert out.startswith("kernbench 0.")


@pytest.mark.parametrize(
    "command",
    [
        of_campaigns(["run", "gemm", "--no-data"]),
        of_campaigns(["run", "gemm", "--json=-"]),
        ["machine", "list"],
    ],
)
@pytest.mark.parametrize(
    ("where", "status", "says"), [(">&-", 0, ""), (">/dev/full", 1, "No space left on device")]
)
def test_output_that_goes_nowhere_is_no_traceback(
    command: list[str], where: str, status: int, says: str
) -> None:
    shell = f'exec "$0" -m kernbench "$@" {where}'
    done = subprocess.run(
        ["sh", "-c", shell, sys.executable, *command],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "a bug of ours" not in done.stderr


def test_a_terminal_of_ascii_alone_gets_the_rest() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kernbench", "machine", "show", "ahbm"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        encoding="ascii",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "HBM" in done.stdout


def test_a_shell_completes_commands_and_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, expected in (
        ("kernbench to", "torchrun"),
        ("kernbench run --mach", "--machine"),
        ("kernbench run --nproc", "--nproc-per-node"),
        ("kernbench run --machine h100-s", "h100-sxm"),
        ("kernbench sweep gemm --machine h100-s", "h100-sxm"),
        ("kernbench retime kept.run --machine h100-s", "h100-sxm"),
        ("kernbench plan --machine h100-s", "h100-sxm"),
    ):
        monkeypatch.setenv("_KERNBENCH_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        with pytest.raises(SystemExit):
            app([], prog_name="kernbench")
        assert expected in capsys.readouterr().out.split()
