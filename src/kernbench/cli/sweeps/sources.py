"""What a program's result depends on besides its parameters: its text, and versions."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from itertools import chain
from pathlib import Path

import kernbench


def digest(*parts: bytes) -> str:
    """Return a hash of byte strings, in their order."""
    result = hashlib.sha256()
    for part in parts:
        result.update(len(part).to_bytes(8, "big"))
        result.update(part)
    return result.hexdigest()


def program_digest(path: Path) -> str:
    """Return a hash of a program's text and of the modules beside it that it imports."""
    return digest(*(file.read_bytes() for file in program_sources(path)))


def program_sources(path: Path) -> list[Path]:
    """Return the files of a program: itself, then the modules in its folder that it imports.

    Imports are read, not run: those inside functions count, computed names do not.
    """
    root = path.resolve().parent
    paths = [path.resolve()]
    for file in paths:  # grows meanwhile
        paths += [path for path in _local_imports(file, root) if path not in paths]
    return [paths[0], *sorted(paths[1:])]


def imports_torch(path: Path) -> bool:
    """Return whether PyTorch is imported by a program or by what it imports beside it."""
    return any(
        name.partition(".")[0] == "torch"
        for file in program_sources(path)
        for name, level in _imports(file)
        if not level
    )


def _local_imports(file: Path, root: Path) -> Iterator[Path]:
    for name, level in _imports(file):
        folder = root
        if level:
            folder = file.parent
            for _ in range(level - 1):
                folder = folder.parent
        parts = name.split(".") if name else []
        for count in range(1, len(parts) + 1):
            place = folder.joinpath(*parts[:count])
            for path in (place.with_suffix(".py"), place / "__init__.py"):
                if path.is_file():
                    yield path


def syntax_nodes(file: Path) -> Iterator[ast.AST]:
    """Yield the nodes of a file's syntax tree; none where it has none."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # running it says why
    yield from ast.walk(tree)


def _imports(file: Path) -> Iterator[tuple[str, int]]:
    """Yield the modules that a file names in imports, with the number of dots before each."""
    for node in syntax_nodes(file):
        if isinstance(node, ast.Import):
            yield from ((name.name, 0) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            before = node.module or ""
            for name in node.names:
                yield ".".join(filter(None, (before, name.name))), node.level


@cache
def versions(has_torch: bool) -> dict[str, str]:
    """Return the versions that results depend on; kernbench's own by its sources.

    A checkout changes without a new version.
    """
    known = {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "kernbench": f"{kernbench.__version__}+{_own_digest()[:12]}",
    }
    for name in ("triton", "numpy", *(["torch"] if has_torch else [])):
        try:
            known[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            known[name] = "none"
    return known


@cache
def _own_digest() -> str:
    root = Path(kernbench.__file__).parent
    files = sorted(path for kind in ("*.py", "*.yaml") for path in root.rglob(kind))
    named = ((str(file.relative_to(root)).encode(), file.read_bytes()) for file in files)
    return digest(*chain.from_iterable(named))
