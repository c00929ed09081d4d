"""The arguments of a program, and how it ends."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path


def say_whose_options(path: Path, args: Sequence[str], options: Collection[str]) -> None:
    """Print a note on ``options`` of kernbench that stand behind a program, and go to it.

    There is none on those that the program's file names itself, behind a ``--``, and on ``--help``.
    """
    parts = [arg.partition("=")[0] for arg in args]
    parts = parts[: parts.index("--")] if "--" in parts else parts
    ours = dict.fromkeys(name for name in parts if name in options and name != "--help")
    if not ours:
        return
    tree = ast.walk(ast.parse(path.read_bytes()))
    named = {node.value for node in tree if isinstance(node, ast.Constant)}
    names = [name for name in ours if name not in named]
    if names:
        goes = "goes" if len(names) == 1 else "go"
        print(
            f"note: {', '.join(names)} {goes} to {path.name}, as with python; options of kernbench "
            "come before the program",
            file=sys.stderr,
            flush=True,
        )


_READS_MORE = re.compile(
    r"\b(argv|parse_known_args|HfArgumentParser|absl|click|fire|hydra|jsonargparse|tyro|typer)\b"
)
"""What a program reads options with that its text does not show."""


def taken_back(
    path: Path, args: Sequence[str], options: Mapping[str, bool]
) -> tuple[list[str], list[str]]:
    """Return which arguments behind a program are kernbench's, and which are the program's.

    ``options`` are names of kernbench's options, and whether each has a value. They are kernbench's
    where the program would refuse them: it reads its options with argparse, and has none of that
    name, or reads none. All else is the program's, and what stands behind a ``--``.
    """
    from kernbench.cli.sweeps.program_options import options_of
    from kernbench.cli.sweeps.sources import program_sources

    texts = [file.read_text(encoding="utf-8", errors="replace") for file in program_sources(path)]
    own = options_of(path)
    reads = any("argparse" in text for text in texts)
    if any(map(_READS_MORE.search, texts)) or (reads and not own):
        return [], list(args)
    theirs = {program_option.spelled for program_option in own.values()} | {"--help"}
    ours: list[str] = []
    left = list(args)
    kept: list[str] = []
    while left and left[0] != "--":
        name, equals, _ = left[0].partition("=")
        is_ours = name in options and name not in theirs
        count = 2 if is_ours and options[name] and not equals else 1
        (ours if is_ours else kept).extend(left[:count])
        del left[:count]
    return ours, [*kept, *left]


def exit_status(end: SystemExit) -> int:
    """Return the exit status of a program that ended by ``SystemExit``; print what it says."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1
