"""The command line: all commands, found in their folder and joined."""

from __future__ import annotations

import importlib
import io
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import metadata
from typing import Annotated, Any

import typer

from kernbench.cli import commands
from kernbench.cli.console.streams import leave, readers_may_leave
from kernbench.cli.programs.importing import staying
from kernbench.cli.registry import Commands, add_log_level


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


def _homes() -> dict[str, Callable[[], Any]]:
    """Return what imports the module of each command, by the command's name.

    The modules are those of the folder of commands and of entry points; one of an entry point that
    has the name of one here takes its place.
    """
    homes: dict[str, Callable[[], Any]] = {
        walk_package.name.rpartition(".")[2]: partial(importlib.import_module, walk_package.name)
        for walk_package in pkgutil.walk_packages(commands.__path__, f"{commands.__name__}.")
        if not walk_package.ispkg
    }
    homes.update((entry.name, entry.load) for entry in metadata.entry_points(group=GROUP))
    return {name.replace("_", "-"): load for name, load in homes.items()}


class _CommandsByName(Mapping[str, Any]):
    """The commands in the order of ``--help``; one that is asked for by its name alone is made."""

    def __init__(self) -> None:
        self._homes = _homes()
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            with staying():
                alone = typer.Typer(rich_markup_mode=None, add_completion=False)
                alone.callback()(_options)
                alone.add_typer(self._homes[name]().app)
                command = typer.main.get_group(alone).commands[name]
                add_log_level(command)
            self._built[name] = command
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._homes, key=lambda name: (self._homes[name]().PLACE, name)))

    def __len__(self) -> int:
        return len(self._homes)


class _CommandLine(Commands):
    """All commands: a call imports and makes the one that it names."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _CommandsByName()


def build_app() -> typer.Typer:
    """Return the command line, all commands joined."""
    built = typer.Typer(
        name="kernbench",
        cls=_CommandLine,
        help=_options.__doc__,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    built.callback()(_options)
    return built


app = build_app()


def main() -> None:
    """Run the command line and exit: 0 done, 1 the bench failed, 2 wrong usage, 130 Ctrl-C."""
    output = sys.stdout
    if isinstance(output, io.TextIOWrapper) and "utf" not in output.encoding.lower():
        # A terminal without lines for boxes shows the rest.
        output.reconfigure(errors="replace")
    with readers_may_leave():
        try:
            app()
        except SystemExit as end:
            if not sys.modules.keys().isdisjoint(("torch", "triton")) and isinstance(end.code, int):
                leave(end.code)
            raise
        except OSError as error:  # of a disk that is full, say
            print(f"error: {error.strerror or error}", file=sys.stderr)
            sys.exit(1)
