"""What a bench does with a PyTorch of its own, beside the ``torch`` that it is given."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from symtable import SymbolTable, symtable

_TORCH = "torch"


def uses_of_own_torch(path: Path) -> list[str]:
    """Return a remark on the functions of a bench that use the PyTorch that the file imports.

    That one computes on the CPU: nothing that it does takes modeled time.
    """
    if _TORCH not in sys.modules:
        return []
    text = path.read_text(encoding="utf-8")
    names = frozenset(_imported(ast.parse(text)))
    users = sorted(set(_users(symtable(text, str(path), "exec"), names))) if names else []
    if not users:
        return []
    return [
        f"{path.name}: {', '.join(users)} use the PyTorch that the file imports, which computes "
        "on the CPU and takes no modeled time; the torch that run() is given is the device's"
    ]


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield the names that PyTorch, its modules and what is in them have in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.partition(".")[0] == _TORCH:
                    yield name.asname or _TORCH
        elif isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == _TORCH:
            yield from (name.asname or name.name for name in node.names)


def _users(scope: SymbolTable, names: frozenset[str]) -> Iterator[str]:
    """Yield the functions that refer to one of ``names``, but to no parameter of that name."""
    if scope.get_type() == "function":
        symbols = (symbol for symbol in scope.get_symbols() if symbol.get_name() in names)
        if any(
            symbol.is_referenced() and (symbol.is_global() or symbol.is_imported())
            for symbol in symbols
        ):
            yield f"{scope.get_name()}()"
    for inner in scope.get_children():
        yield from _users(inner, names)
