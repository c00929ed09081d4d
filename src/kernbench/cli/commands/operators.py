"""``kernbench operators``: which operators of an installed package kernbench defines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

import typer

from kernbench.cli import options as common
from kernbench.cli.programs.reporting import DONE, guarded_command
from kernbench.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class OperatorsOptions(common.SavedRunOptions):
    """What ``kernbench operators`` was given."""

    package: str = common.argument(
        ..., metavar="PACKAGE", help="An installed package of CUDA C++, as vllm."
    )


PLACE = 61
app = typer.Typer()


@guarded_command(app, "operators")
def _operators(options: OperatorsOptions) -> int:
    """List the operators of a package's extension modules, those first that kernbench lacks.

    kernbench operators vllm

    The package is not imported: its shared objects have the schemas as text. A program may import
    it; a call of an operator that lacks a definition is refused, and the report names it.
    """
    from kernbench.torch_bridge import package_operators

    spec = PathFinder.find_spec(options.package, sys.path)
    folders = None if spec is None else spec.submodule_search_locations
    if not folders:
        raise UsageError(f"{options.package}: no such package is installed; give one as vllm")
    files = package_operators(Path(next(iter(folders))))
    if not files:
        raise UsageError(f"{options.package}: none of its shared objects needs CUDA")
    for line in _lines(options.package, files):
        print(line)
    return DONE


def _lines(package: str, files: dict[Path, dict[str, bool]]) -> Iterator[str]:
    total = sum(map(len, files.values()))
    known = sum(sum(file.values()) for file in files.values())
    yield f"{package}: {known} of {total} operators are defined"
    for file, defined in files.items():
        lacking = [name for name, is_defined in defined.items() if not is_defined]
        yield f"{file}: {len(defined) - len(lacking)} of {len(defined)} operators are defined"
        yield from (f"  lacks {name}" for name in sorted(lacking))
        yield from (f"  has   {name}" for name in sorted(defined.keys() - set(lacking)))
    if known < total:
        yield "A call of one that lacks a definition ends in an error that has its name and schema."
