from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernbench.cli import commands
from kernbench.cli.app import build_app
from tests.programs import PROGRAMS


def test_a_module_in_the_folder_of_commands_is_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(PROGRAMS / "greet.py", tmp_path)
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    app = build_app()
    del sys.modules["kernbench.cli.commands.greet"]
    run = CliRunner().invoke(app, ["greet", "--machine", "h100"])
    assert (run.exit_code, run.output) == (0, "hello h100\n")
    listed = CliRunner().invoke(app, ["--help"]).output.splitlines()
    names = [line.split()[0] for line in listed[listed.index("Commands:") + 1 :]]
    assert names[:3] == ["run", "greet", "script"]
