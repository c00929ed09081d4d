"""What a file is, by its syntax tree: a bench, a PyTorch program, or a script without PyTorch."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from enum import Enum
from importlib import metadata
from pathlib import Path

from kernbench.cli.programs.bench_file import find_bench, is_bench
from kernbench.errors import KernbenchError

_TORCH = "torch"
_PACKAGE, _OF_EXTRA = re.compile(r"[\w.-]*"), re.compile(r"extra == [\"']torch[\"']")
_UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)
_DEPTH = 8
"""How far imports of modules beside the file are followed."""


class Kind(Enum):
    """The kinds of files that ``kernbench run`` runs, in words."""

    BENCH = "a bench"
    SCRIPT = "a script without PyTorch"
    PYTORCH = "a PyTorch program"

    def __str__(self) -> str:
        return self.value


def kind_of(text: str) -> Kind:
    """Return what the file or the bench ``given`` is; nothing of it is executed.

    It is a bench if it defines ``run`` and does not call it itself, or if its ``run`` takes
    ``torch``. Else it is a PyTorch program if it imports PyTorch: itself, through a module beside
    it, or through a package that requires PyTorch. What cannot be read is a bench if only a bench
    could be meant, else a script: running it says what is wrong.
    """
    try:
        path = find_bench(text)
        tree = ast.parse(path.read_bytes(), str(path))
    except KernbenchError:
        return Kind.BENCH
    except _UNREADABLE:
        return Kind.SCRIPT
    if offers_run(tree):
        return Kind.BENCH
    return Kind.PYTORCH if _needs_torch(tree, path.parent, set()) else Kind.SCRIPT


def is_readable(text: str) -> bool:
    """Return whether a program is there and can be read, so that its kind is known."""
    try:
        ast.parse(find_bench(text).read_bytes())
    except (KernbenchError, *_UNREADABLE):
        return False
    return True


def offers_run(tree: ast.Module) -> bool:
    """Return whether a file has a ``run`` that is for others to call, as a bench's is.

    It takes ``torch``, or nothing in the file uses it, or the file does nothing but define.
    """
    if is_bench(tree):
        return True
    runs = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "run"
    ]
    own = [node for node in runs if node in tree.body]
    if any([arg.arg for arg in node.args.args][:1] == [_TORCH] for node in own):
        return True
    used = (isinstance(node, ast.Name) and node.id == "run" for node in ast.walk(tree))
    return any(node.args.args for node in own) and not any(used)


def _needs_torch(tree: ast.Module, folder: Path, seen: set[str], depth: int = 0) -> bool:
    for name, is_optional in _imports(tree, is_optional=False):
        top = name.partition(".")[0]
        if top == _TORCH:
            if not is_optional or importlib.util.find_spec(_TORCH) is not None:
                return True
        elif top != "kernbench" and name not in seen:
            seen.add(name)
            path = folder.joinpath(*name.split("."))
            pair = (path.with_suffix(".py"), path / "__init__.py")
            beside = next((path for path in pair if path.is_file()), None)
            if beside is None:
                if _requires_torch(top):
                    return True
            elif depth < _DEPTH and _file_needs_torch(beside, folder, seen, depth + 1):
                return True
    return False


def _file_needs_torch(path: Path, folder: Path, seen: set[str], depth: int) -> bool:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return _needs_torch(tree, folder, seen, depth)


def _imports(node: ast.AST, *, is_optional: bool) -> Iterator[tuple[str, bool]]:
    """Yield the modules that a tree imports, and whether it goes on without them."""
    if isinstance(node, ast.Import):
        yield from ((name.name, is_optional) for name in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
        yield node.module, is_optional
    for item in ast.iter_child_nodes(node):
        is_tried = isinstance(node, ast.Try) and bool(node.handlers) and item in node.body
        yield from _imports(item, is_optional=is_optional or is_tried)


def _requires_torch(package: str) -> bool:
    """Return whether an installed package requires PyTorch, at least for what uses its tensors."""
    try:
        requirements = metadata.requires(package) or ()
    except (metadata.PackageNotFoundError, ValueError):
        return False
    return any(
        _PACKAGE.match(requirement)[0] == _TORCH  # type: ignore[index]  # all have a name
        and ("extra ==" not in requirement or _OF_EXTRA.search(requirement) is not None)
        for requirement in requirements
    )
