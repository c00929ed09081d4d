from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernbench.cli import commands
from kernbench.cli.app import build_app

GREET = '''
"""``kernbench greet``."""
import typer

from kernbench.cli import options as given

PLACE = 15
app = typer.Typer()


@app.command("greet")
def _greet(machine: given.Machine = "ahbm") -> None:
    """Greet a machine."""
    typer.echo(f"hello {machine}")
'''


def test_a_module_in_the_folder_of_commands_is_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "greet.py").write_text(GREET)
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    app = build_app()
    monkeypatch.delitem(sys.modules, "kernbench.cli.commands.greet")
    run = CliRunner().invoke(app, ["greet", "--machine", "h100"])
    assert (run.exit_code, run.output) == (0, "hello h100\n")
    listed = CliRunner().invoke(app, ["--help"]).output.splitlines()
    names = [line.split()[0] for line in listed[listed.index("Commands:") + 1 :]]
    assert names[:3] == ["run", "greet", "script"]
