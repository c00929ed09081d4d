"""``kernbench greet``."""

import typer

from kernbench.cli import options as given

PLACE = 15
app = typer.Typer()


@app.command("greet")
def _greet(machine: given.Machine = "ahbm") -> None:
    """Greet a machine."""
    typer.echo(f"hello {machine}")
