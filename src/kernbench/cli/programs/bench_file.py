"""Bench files: where they are found, and what one defines."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import kernbench
from kernbench.errors import UnknownNameError, UsageError, nearest
from kernbench.lazy import LAZY_HELP, lazy_kind, refuse_lazy_result

if TYPE_CHECKING:
    from kernbench.runtime_api import RuntimeContext

_MOST_SHOWN = 80
"""From this many characters on, a name is too long for a file."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A loaded bench."""

    name: str
    path: Path
    run: Callable[..., object]
    ranks: int | None
    """World size that the bench asks for with ``RANKS = n``."""
    machine: str
    """Machine that the bench asks for with ``MACHINE = "..."``; ahbm without."""
    about: str
    """Its documentation."""

    def start(self, torch: RuntimeContext, params: Mapping[str, Any]) -> None:
        """Call ``run``.

        Raises:
            UsageError: It returned what has yet to be run: a coroutine, say.
        """
        refuse_lazy_result(self.run(torch, **params), f"{self.path.name}: run()")


def shipped_folder() -> Path:
    """Return the folder of the benches that ship with kernbench.

    In an installed package that is ``kernbench/benches``; in a checkout, ``benches`` at the root.
    """
    package = Path(kernbench.__file__).parent
    installed = package / "benches"
    return installed if installed.is_dir() else package.parents[1] / "benches"


def known_benches() -> list[str]:
    """Return the names of the benches that ship with kernbench."""
    files = shipped_folder().glob("*.py")
    return sorted(path.stem for path in files if not path.stem.startswith("_"))


def reason_for_none(path: Path) -> str:
    """Return why there is no program at a path: what is there instead, or which names are near."""
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    if path.exists():
        return "it is a pipe, a socket or a device; save the program to a file"
    if path.is_symlink():
        return f"it is a link to {path.readlink()}, which leads to no file"
    return nearest(path.name, (item.name for item in path.parent.glob("*.py")))


def find_bench(text: str) -> Path:
    """Return the file of a bench or a program.

    A path, or the name of a bench that ships with kernbench, or of a command in Python that is
    installed beside it, such as ``vllm``.

    Raises:
        UnknownNameError: There is no such file and no such name.
    """
    path = Path(text)
    try:
        if path.is_file():
            return path.resolve()
    except OSError as error:
        shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
        raise UnknownNameError(f"no bench {shown}: {error.strerror}") from None
    if text and path.is_dir():
        raise UsageError(f"{text} is a folder; name a Python file in it")
    if path.suffix == ".py" or len(path.parts) > 1:
        raise UnknownNameError(f"no bench {text}: {reason_for_none(path)}")
    names = known_benches()
    if text in names:
        return shipped_folder() / f"{text}.py"
    command = installed_command(text)
    if command is not None:
        return command
    raise UnknownNameError(f"unknown bench {text!r}: {nearest(text, names)}")


def installed_command(text: str) -> Path | None:
    """Return the file of a command in Python that is installed beside kernbench; else None."""
    path = Path(sysconfig.get_path("scripts"), text)
    is_command = text and path.is_file() and re.match(rb"#!.*python", path.read_bytes())
    return path if is_command else None


def is_bench(tree: ast.Module) -> bool:
    """Return whether a file only defines ``run``, so that running it as a script does nothing.

    What it assigns may be made by calls if ``run`` takes ``torch``, as a bench's does.
    """
    runs = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "run"
    ]
    takes_torch = any([arg.arg for arg in node.args.args][:1] == ["torch"] for node in runs)
    return bool(runs) and all(_is_idle(node, takes_torch) for node in tree.body)


def _is_idle(node: ast.stmt, may_call: bool) -> bool:
    if isinstance(node, ast.If | ast.Try):
        # As around an import that may fail; `if __name__ == "__main__"` calls something.
        parts = (stmt for stmt in ast.iter_child_nodes(node) if isinstance(stmt, ast.stmt))
        return all(_is_idle(part, may_call) for part in parts)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return may_call or not any(isinstance(item, ast.Call) for item in ast.walk(node))
    idle = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return isinstance(node, idle | ast.Pass)


def load_bench(text: str) -> Bench:
    """Import a bench's file and return the bench.

    As with ``python FILE``, modules beside the file can be imported. Whatever the file's own code
    raises is passed on.

    Raises:
        UnknownNameError: There is no such bench.
        UsageError: The file has no fitting ``run``, or ``RANKS`` or ``MACHINE`` is of no use.
    """
    path = find_bench(text)
    # A program would do all of its work, or fail for want of a GPU, before it is found to be one.
    run = getattr(_import(path), "run", None) if _may_define_run(path) else None
    if not callable(run):
        raise UsageError(
            f"{path.name} is not a bench: it has no function run(torch, ...); "
            "kernbench run runs other programs as what they are"
        )
    module = sys.modules[_module_name(path)]
    if (kind := lazy_kind(run)) is not None:
        raise UsageError(f"{path.name}: run() is {kind}; {LAZY_HELP}")
    if not inspect.signature(run).parameters:
        raise UsageError(f"{path.name}: run() must take torch as its first parameter")
    ranks = getattr(module, "RANKS", None)
    if ranks is not None and (type(ranks) is not int or ranks < 1):
        raise UsageError(f"{path.name}: RANKS must be a positive integer, but got {ranks!r}")
    machine = getattr(module, "MACHINE", "ahbm")
    if type(machine) is not str:
        raise UsageError(f"{path.name}: MACHINE must be a machine's name, but got {machine!r}")
    about = inspect.getdoc(module) or inspect.getdoc(run) or ""
    return Bench(path.stem, path, run, ranks, machine, about)


def _may_define_run(path: Path) -> bool:
    """Return whether a file mentions ``run``; True if unreadable, which importing it reports."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    for node in ast.walk(tree):
        if isinstance(node, ast.alias):
            names = {node.name, node.asname}
        else:
            names = {getattr(node, name, None) for name in ("name", "id", "value")}
        if not names.isdisjoint(("run", "*")):
            return True
    return False


def _module_name(path: Path) -> str:
    # A prefix of our own: a bench called "json" must not stand in for the module json.
    return f"kernbench_bench_{path.stem}"


def _import(path: Path) -> ModuleType:
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, folder := str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        if isinstance(error, SyntaxError):
            # Not there when the file is no text at all.
            error.filename = error.filename or str(path)
        del sys.modules[name]
        raise
    finally:
        # Libraries import late, and mean Python's modules, though files beside have such names.
        sys.path.remove(folder)
        packages = sysconfig.get_path("purelib")
        sys.path.insert([*sys.path, packages].index(packages), folder)
    return module
