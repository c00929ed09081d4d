from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from kernbench.cli import commands
from kernbench.cli.app import build_app
from kernbench.cli.options import ProgramOptions
from kernbench.cli.registry import options_command
from tests.cli.command_line import kernbench
from tests.programs import PROGRAMS


def test_a_module_in_the_folder_of_commands_is_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(PROGRAMS / "greet.py", tmp_path)
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    app = build_app()
    run = CliRunner().invoke(app, ["greet", "--machine", "h100"])
    del sys.modules["kernbench.cli.commands.greet"]
    assert (run.exit_code, run.output) == (0, "hello h100\n")
    listed = CliRunner().invoke(app, ["--help"]).output.splitlines()
    rows = [line for line in listed[listed.index("Commands:") + 1 :] if line[2:3].strip()]
    names = [line.split()[0] for line in rows]
    assert names[:3] == ["run", "greet", "script"]


@dataclass(frozen=True, kw_only=True)
class _GreetOptions(ProgramOptions):
    name: Annotated[str, typer.Argument(metavar="NAME")]
    times: Annotated[int, typer.Option(min=1)] = 1


def test_the_fields_of_a_class_are_the_options_of_a_command() -> None:
    app, seen = typer.Typer(), []

    @options_command(app, "greet")
    def greet(context: typer.Context, options: _GreetOptions) -> int:
        """Say hello."""
        seen.append(options)
        return 3

    run = CliRunner().invoke(app, ["--times", "2", "you", "--no-data"])
    assert run.exit_code == 3
    assert [(item.name, item.times, item.data) for item in seen] == [("you", 2, False)]
    assert {"--times", "--log", "--no-data"} <= seen[0].own_options
    assert CliRunner().invoke(app, ["--times", "0", "you"]).exit_code == 2
    assert "Say hello." in CliRunner().invoke(app, ["--help"]).output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("judge", "a.py", "--engine", "nope"), "--engine does nothing without --batch"),
        (("judge", "a.py", "--port", "1"), "--port does nothing without --serve"),
        (("judge", "--serve", "--json", "-"), "--json does nothing with --serve"),
        (("why", "a.run", "--lines", "--path"), "--path does nothing with --lines"),
        (("why", "a.run", "--communication", "--steps", "2:"), "does nothing with --steps"),
        (("sweep", "gemm", "--metric", "time_ns"), "--metric does nothing without --plot"),
        (("goodput", "--steps", "3"), "--steps does nothing without [RUN]"),
        (
            ("plan", "--model", "x", "--machine", "y", "--devices", "2", "--new-tokens", "3"),
            "--new-tokens does nothing with --train\n",
        ),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(options: tuple[str, ...], said: str) -> None:
    result = kernbench(*options)
    assert result.exit_code == 2
    assert said in result.stderr
