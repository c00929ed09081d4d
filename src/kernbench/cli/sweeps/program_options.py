"""The options that a program's text says it takes, and how an axis becomes one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench.cli.sweeps.sources import nodes_of, program_sources
from kernbench.errors import UsageError

ENVIRONMENT = "env."
"""What an axis begins with that is a variable of the environment."""
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOption:
    """One option of a program, as a call of ``add_argument`` has it."""

    spelled: str
    """``--hidden-size``."""
    default: Any = None
    """Its default where that is a plain value."""
    action: str = ""
    """``store_true`` and the like."""


def options_of(path: Path) -> dict[str, ProgramOption]:
    """Return the options of a program by name, ``-`` as ``_``; nothing of it is executed.

    They are those of calls that have a text beginning with ``--`` first: argparse's
    ``add_argument``, and ``option`` of click.
    """
    options: dict[str, ProgramOption] = {}
    for file in program_sources(path):
        for node in nodes_of(file):
            if isinstance(node, ast.Call):
                for option in _options_in(node):
                    options.setdefault(option.spelled.lstrip("-").replace("-", "_"), option)
    return options


def _options_in(call: ast.Call) -> Iterator[ProgramOption]:
    called = call.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    if name not in ("add_argument", "option"):
        return
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    default = keywords.get("default")
    action = keywords.get("action")
    if isinstance(action, ast.Attribute):  # argparse.BooleanOptionalAction
        action = ast.Constant(action.attr)
    for arg in call.args:
        if isinstance(arg, ast.Constant) and str(arg.value).startswith("--"):
            yield ProgramOption(
                spelled=str(arg.value),
                default=default.value if isinstance(default, ast.Constant) else None,
                action=str(action.value) if isinstance(action, ast.Constant) else "",
            )


def spelled(values: Mapping[str, str], options: Mapping[str, ProgramOption]) -> Iterator[str]:
    """Yield the arguments by which a program gets values.

    Raises:
        UsageError: A flag is given what is neither true nor false.
    """
    for name, value in values.items():
        option = options.get(name) or ProgramOption(spelled=f"--{name}")
        if not option.action or option.action in ("store", "append"):
            yield from (option.spelled, value)
            continue
        is_set = value.lower() in _TRUE
        if not is_set and value.lower() not in _FALSE:
            raise UsageError(f"{option.spelled} is a flag: true or false, but got {value!r}")
        if option.action == "BooleanOptionalAction":
            yield option.spelled if is_set else f"--no-{option.spelled.removeprefix('--')}"
        elif is_set:
            yield option.spelled
