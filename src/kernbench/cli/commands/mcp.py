"""``kernbench mcp``: the commands as tools of a client of the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernbench.cli.programs.reporting import DONE, guarded

PLACE = 96
app = typer.Typer()


@app.command("mcp")
def mcp_command(
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where sources and runs are kept [default: a temporary one]."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Processes that judge.")] = 1,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="The longest that a command may take.")
    ] = 600,
) -> None:
    """Serve run, why, findings, diff, plan and judge as tools over standard input and output.

    kernbench mcp --folder kernbench-runs

    A client of the Model Context Protocol starts it; needs pip install "kernbench[mcp]".
    """

    def serve() -> int:
        from kernbench.service import build_server, serving

        with serving(folder, workers=workers, timeout_s=timeout) as tools:
            build_server(tools).run("stdio")
        return DONE

    raise typer.Exit(guarded(serve, debug=False, usage=True))
