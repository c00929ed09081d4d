"""The arguments of a program, and how it ends."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Sequence
from pathlib import Path


def say_whose_options(path: Path, args: Sequence[str], options: Collection[str]) -> None:
    """Print a note on ``options`` of kernbench that stand behind a program, and go to it.

    There is none on those that the program's file names itself, behind a ``--``, and on ``--help``.
    """
    given = [each.partition("=")[0] for each in args]
    given = given[: given.index("--")] if "--" in given else given
    ours = dict.fromkeys(each for each in given if each in options and each != "--help")
    if not ours:
        return
    tree = ast.walk(ast.parse(path.read_bytes()))
    named = {node.value for node in tree if isinstance(node, ast.Constant)}
    found = [each for each in ours if each not in named]
    if found:
        goes = "goes" if len(found) == 1 else "go"
        print(
            f"note: {', '.join(found)} {goes} to {path.name}, as with python; options of kernbench "
            "come before the program",
            file=sys.stderr,
            flush=True,
        )


def exit_status(end: SystemExit) -> int:
    """Return the exit status of a program that ended by ``SystemExit``; print what it says."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1
