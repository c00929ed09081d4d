"""What all commands share: how they end."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from kernbench.errors import KernbenchError


class Commands(TyperGroup):
    """The commands; wrong usage exits with 2, Ctrl-C with 130, each with one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KernbenchError as error:
            print(f"error: {error}", file=sys.stderr)
            status = 2
        except KeyboardInterrupt as error:
            lines = ["interrupted", *getattr(error, "__notes__", ())]
            print("\n  ".join(lines), file=sys.stderr)
            status = 130
        raise typer.Exit(status)


def option_names(context: typer.Context) -> frozenset[str]:
    """Return the long names of the options of the command that is run."""
    names = (name for each in context.command.params for name in (*each.opts, *each.secondary_opts))
    return frozenset(name for name in names if name.startswith("--"))
