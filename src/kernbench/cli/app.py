"""The command line: all commands, found in their folder and joined."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from importlib import metadata
from typing import Annotated, Any

import typer

from kernbench.cli import commands
from kernbench.cli.console.leaving import leave
from kernbench.cli.console.streams import readers_may_leave
from kernbench.cli.registry import Commands


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"kernbench {metadata.version('kernbench')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Run Triton kernels and tensor-parallel programs on accelerators that you do not have."""


GROUP = "kernbench.commands"
"""The entry points of other distributions: modules of commands, with an ``app`` and a ``PLACE``."""


def _commands() -> list[typer.Typer]:
    """Return what modules of commands define, in the order of ``--help``.

    They are those of the folder of commands and of entry points; one of an entry point that has the
    name of one here takes its place.
    """
    names = (
        walk_package.name
        for walk_package in pkgutil.walk_packages(commands.__path__, f"{commands.__name__}.")
        if not walk_package.ispkg
    )
    modules: dict[str, Any] = {
        name.rpartition(".")[2]: importlib.import_module(name) for name in names
    }
    modules.update((entry.name, entry.load()) for entry in metadata.entry_points(group=GROUP))
    ordered = sorted(modules.items(), key=lambda item: (item[1].PLACE, item[0]))
    return [module.app for _, module in ordered]


def build_app() -> typer.Typer:
    """Return the command line, all commands joined."""
    built = typer.Typer(
        name="kernbench",
        cls=Commands,
        help=_options.__doc__,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    built.callback()(_options)
    for command in _commands():
        built.add_typer(command)
    return built


app = build_app()


def main() -> None:
    """Run the command line and exit: 0 done, 1 the bench failed, 2 wrong usage, 130 Ctrl-C."""
    with readers_may_leave():
        try:
            app()
        except SystemExit as end:
            if "torch" in sys.modules and isinstance(end.code, int):
                leave(end.code)
            raise
        except OSError as error:  # of a disk that is full, say
            print(f"error: {error.strerror or error}", file=sys.stderr)
            sys.exit(1)
