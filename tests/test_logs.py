"""What kernbench says of its own work, on every command and in Python."""

from __future__ import annotations

import logging.config
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernbench import RuntimeContext
from kernbench.cli.app import app
from kernbench.errors import UsageError
from kernbench.logs import ROOT, logger, show_logs

BENCH = """\
import triton, triton.language as tl
@triton.jit
def twice{number}(x, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(x + at, 2 * tl.load(x + at))
def run(torch):
    x = torch.ones(16)
    twice{number}[(1,)](x, 16)
    print(x.sum().item())
"""


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger(ROOT)
    monkeypatch.delenv("KERNBENCH_LOG", raising=False)
    before = root.handlers[:], root.level, root.propagate
    yield
    root.handlers[:], root.level, root.propagate = before


def called(*arguments: str) -> int:
    with pytest.raises(SystemExit) as status:
        app([*arguments])
    return int(status.value.code or 0)


def test_every_command_has_the_option() -> None:
    from typer.main import get_command

    groups, num_commands = [get_command(app)], 0
    while groups:
        group = groups.pop()
        for command in (group, *group.commands.values()):  # type: ignore[attr-defined]
            options = [item for item in command.params if "--log-level" in item.opts]
            assert len(options) == 1, command.name
            num_commands += 1
            if command is not group and hasattr(command, "commands"):
                groups.append(command)
    assert num_commands > 15


def test_a_run_says_machine_cache_compiling_phases_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kernels"))
    Path("bench.py").write_text(BENCH.format(number=1))
    assert (
        called("run", "bench.py", "--log-level", "info", "--machine", "ahbm:2", "--log", "l") == 0
    )
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "32.0"
    lines = [re.sub(r"[\d.]+ m?s\b", "T", line).split(maxsplit=1)[1] for line in err.splitlines()]
    for text in (
        "info    run: machine ahbm: 2 SIPs, links: ring; world size 2, with data",
        f"info    compile: kernels are kept in {tmp_path / 'kernels'}",
        "info    run: bench.py begins",
        "info    compile: twice1: make_ttir in T",
    ):
        assert text in lines
    assert [line for line in lines if line.startswith("info    files: --log ")]
    assert not [line for line in lines if line.startswith("debug")]
    # From the cache: not compiled again. What is planned and computed is said at debug.
    assert called("--log-level", "DEBUG", "run", "bench.py") == 0
    err = capsys.readouterr().err
    assert "make_ttir in" not in err
    for expected in (
        "twice1 is ready",
        "twice1 on grid (1, 1, 1): planned in",
        "computed the data",
    ):
        assert expected in err
    assert called("run", "bench.py", "--log-level", "warning") == 0
    assert capsys.readouterr().err == ""


def test_the_environment_asks_for_it_in_python_and_of_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with RuntimeContext():
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("KERNBENCH_LOG", "info")
    for _ in range(2):
        with RuntimeContext("h100-sxm", ranks=4, data=False):
            pass
        err = capsys.readouterr().err
        assert err.count("machine h100-sxm: 4 SIPs, links: switch; world size 4, time and") == 1
    assert called("machine", "list") == 0
    monkeypatch.setenv("KERNBENCH_LOG", "loud")
    assert called("machine", "list") == 2
    assert "log level 'loud'" in capsys.readouterr().err
    root = logging.getLogger(ROOT)
    root.handlers[:] = [logging.NullHandler()]  # of a program's own
    with pytest.raises(UsageError, match="KERNBENCH_LOG: log level 'loud': known: debug, error"):
        RuntimeContext()


def test_lines_are_shown_once_where_a_program_shows_all_loggers(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    logger("part").warning("as any library's")
    assert caplog.messages == ["as any library's"]
    # As a program's own configuration leaves the loggers that it does not name.
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": True})
    assert logger("part").disabled
    show_logs("error")
    show_logs("warning")
    logger("part").warning("ours")
    logger("part").info("quiet")
    assert caplog.messages == ["as any library's"]
    assert re.fullmatch(r" *\d+\.\d{3} s  warning part: ours\n", capsys.readouterr().err)


@pytest.mark.parametrize("level", ["", "loud", "10"])
def test_wrong_levels_are_refused(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="log level"):
        show_logs(level)
    assert called("run", "gemm", "--log-level", level or " ") == 2
    assert "known: debug, error, info, warning" in capsys.readouterr().err
