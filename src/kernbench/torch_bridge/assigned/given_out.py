"""What functions of shared modules give out: objects that the program names only by them.

A function that returns one of its module's globals (``return _manager``), of its closure or of its
class gives the same object to all processes. What it returns otherwise it has made, or fetched by
another function.
"""

from __future__ import annotations

import ast
import ctypes
import dis
import linecache
import sys
from collections.abc import Container, Iterator, Mapping
from functools import lru_cache
from itertools import groupby, takewhile
from types import CodeType, FunctionType, ModuleType
from typing import Any

from kernbench.torch_bridge.assigned.registries import CHANGING
from kernbench.torch_bridge.assigned.writes import own_dict
from kernbench.torch_bridge.base.patches import MISSING

_CFunction: Any = ctypes._CFuncPtr  # type: ignore[attr-defined]
_RETURNS, _CACHE = dis.opmap["RETURN_VALUE"], 0
_FOLLOWED = ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR", "RETURN_VALUE")
_LAST_LOADS = frozenset(
    dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR", "BINARY_SUBSCR")
)


def given_out(function: Any, space: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what a function in a module or class returns that was there before it was called."""
    if isinstance(function, (classmethod, staticmethod)):
        function = function.__func__
    if type(function) is not FunctionType:
        return
    code = function.__code__
    for steps in _lines_that_return(code):
        value: Any = MISSING
        for operation, name in steps:
            if operation == "LOAD_GLOBAL":
                value = function.__globals__.get(name, MISSING)
            elif operation == "LOAD_DEREF":
                cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
                value = _content(cells.get(name))
            elif operation == "LOAD_ATTR":
                value = (space if value is MISSING else _space(value)).get(name, MISSING)
            elif value is not MISSING:
                yield value


@lru_cache(maxsize=1 << 16)
def _lines_that_return(code: CodeType) -> tuple[tuple[tuple[str, Any], ...], ...]:
    """Return the steps of each line that may return what it loads, until its first call.

    Disassembling takes most of the time here, and most functions of libraries have no such line.
    """
    if not _returns_what_it_loads(code):
        return ()
    steps = dis.get_instructions(code)
    lines = (
        tuple(
            (step.opname, step.argval)
            for step in takewhile(lambda step: "CALL" not in step.opname, line)
            if step.opname in _FOLLOWED
        )
        for _, line in groupby(steps, lambda step: step.positions and step.positions.lineno)
    )
    return tuple(line for line in lines if ("RETURN_VALUE", None) in line)


def _returns_what_it_loads(code: CodeType) -> bool:
    operations = code.co_code[::2]
    at = operations.find(_RETURNS)
    while at >= 0:
        before = operations[:at].rstrip(bytes([_CACHE]))
        if before and before[-1] in _LAST_LOADS:
            return True
        at = operations.find(_RETURNS, at + 1)
    return False


def _content(cell: Any) -> Any:
    try:
        return MISSING if cell is None else cell.cell_contents
    except ValueError:
        return MISSING


def _space(value: Any) -> Any:
    return vars(value) if isinstance(value, (type, ModuleType)) else own_dict(value)


def changed_results(file: str, functions: Container[int]) -> Iterator[tuple[str, int, bool]]:
    """Yield shared functions whose results a file of the program's changes, and the lines.

    By their full names, of those whose identities are in ``functions``; and functions of C whose
    attributes it sets, which ``ctypes`` keeps in C (last: False).
    """
    try:
        nodes = list(ast.walk(ast.parse("".join(linecache.getlines(file)))))
    except (SyntaxError, ValueError):
        return
    imported = _imported(nodes)

    def full(node: ast.expr) -> str:
        first, *rest = _path(node)
        return ".".join([imported.get(first, ""), *rest])

    def called(node: ast.expr) -> str:
        name = full(node.func) if isinstance(node, ast.Call) else ""
        return name if id(_named(name)) in functions else ""

    results = {
        name.id: called(node.value)
        for node in nodes
        if isinstance(node, ast.Assign)
        for name in node.targets
        if isinstance(name, ast.Name)
    }
    for node in nodes:
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            is_changed = not isinstance(node.ctx, ast.Load)
            if is_changed or (isinstance(node, ast.Attribute) and node.attr in CHANGING):
                owner = node.value
                function = results.get(owner.id) if isinstance(owner, ast.Name) else called(owner)
                if function:
                    yield function, node.lineno, True
                elif is_changed and isinstance(_named(full(owner)), _CFunction):
                    yield full(owner), node.lineno, False


def _imported(nodes: list[ast.AST]) -> dict[str, str]:
    """Return the full names of what a file imports, by its names there."""
    imported: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for name in node.names:
                first = name.name.partition(".")[0]
                imported[name.asname or first] = name.name if name.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in node.names:
                imported[name.asname or name.name] = f"{node.module}.{name.name}"
    return imported


def _path(node: ast.expr) -> list[str]:
    """Return the names of ``a.b.c``, an empty one in place of what is no name."""
    if isinstance(node, ast.Attribute):
        return [*_path(node.value), node.attr]
    return [node.id if isinstance(node, ast.Name) else ""]


def _named(name: str) -> Any:
    """Return what a full name stands for in the modules that are imported; None if nothing."""
    module, _, attribute = name.rpartition(".")
    if not module:
        return None
    owner = sys.modules.get(module) or _named(module)
    return _space(owner).get(attribute)
