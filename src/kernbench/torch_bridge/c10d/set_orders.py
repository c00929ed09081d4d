"""Collectives in the order of a set of strings, which is another in each real process.

Ranks share one hash seed, so that they have one order; processes with seeds of their own reduce
other tensors on other ranks. Looked for once per line that calls a collective, in the loops of the
program around it.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType
from typing import Any

from kernbench.clock import frame_of_program, local_of
from kernbench.torch_bridge.python.hash_seeds import is_view

_MOST_FRAMES, _MOST_STEPS = 8, 6
_KEEPING = frozenset(("enumerate", "frozenset", "iter", "list", "reversed", "set", "tuple", "zip"))
"""Functions whose result has the order of what they are given, or another order of a set."""
_JOINING = frozenset(("copy", "difference", "intersection", "symmetric_difference", "union"))
"""Methods of sets that make a set."""
_Loop = ast.For | ast.AsyncFor | ast.comprehension


def unordered_loop(frame: FrameType | None) -> str | None:
    """Return the line of a loop over a set of strings that calls run in from ``frame`` on, if any.

    ``file:line``; None if there is none.
    """
    frame = frame_of_program(frame)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        file = frame.f_code.co_filename
        for loop, line, scope in _loops_around(file, frame.f_lineno):
            if _has_set_of_strings(loop.iter, loop, scope, frame):
                return f"{file.rpartition('/')[2]}:{line}"
        frame = frame_of_program(frame.f_back)
    return None


@lru_cache(maxsize=256)
def _loops_around(file: str, line: int) -> tuple[tuple[_Loop, int, ast.AST], ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(_loops(tree, tree, line))


def _loops(node: ast.AST, scope: ast.AST, line: int) -> Iterator[tuple[_Loop, int, ast.AST]]:
    """Yield the loops around a line, with the function or module that each is in."""
    for item in ast.iter_child_nodes(node):
        first, last = getattr(item, "lineno", line), getattr(item, "end_lineno", line)
        if not first <= line <= last:
            continue
        if isinstance(item, (ast.For, ast.AsyncFor)) and item.body[0].lineno <= line:
            yield item, item.lineno, scope
        for generator in getattr(item, "generators", ()):
            yield generator, first, scope
        inner = isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from _loops(item, item if inner else scope, line)


def _has_set_of_strings(
    node: ast.expr, loop: _Loop, scope: ast.AST, frame: FrameType, depth: int = _MOST_STEPS
) -> bool:
    """Return whether what a loop goes over has the order of a set of strings."""
    if not depth:
        return False
    parts: list[ast.expr] = []
    if isinstance(node, ast.Set):
        return any(isinstance(elt, ast.Constant) and _is_text(elt.value) for elt in node.elts)
    if _makes_set(node):
        names = [node for node in ast.walk(loop.target) if isinstance(node, ast.Name)]
        return any(_is_text(_value_of(name, frame)) for name in names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _KEEPING:
        parts = node.args
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        parts = [node.func.value] if node.func.attr in _JOINING else []
    elif isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    elif isinstance(node, (ast.Name, ast.Attribute)):
        value = _value_of(node, frame)
        if isinstance(value, (set, frozenset)):
            return any(map(_is_text, value))
        if isinstance(value, (list, tuple)) and isinstance(node, ast.Name):
            parts = list(_assigned_to(node.id, scope))
    return any(_has_set_of_strings(part, loop, scope, frame, depth - 1) for part in parts)


def _makes_set(node: ast.expr) -> bool:
    """Return whether an expression makes a set, of whatever."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("set", "frozenset")
    return isinstance(node, ast.SetComp) or (
        isinstance(node, ast.BinOp) and any(map(is_view, (node.left, node.right)))
    )


def _assigned_to(name: str, scope: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            yield node.value


def _value_of(node: ast.expr, frame: FrameType) -> Any:
    """Return what a name stands for, or an attribute that an object keeps; None if neither."""
    if isinstance(node, ast.Name):
        value = local_of(frame, node.id)
        return frame.f_globals.get(node.id) if value is None else value
    if isinstance(node, ast.Attribute):
        return getattr(_value_of(node.value, frame), "__dict__", {}).get(node.attr)
    return None


def _is_text(value: object) -> bool:
    return isinstance(value, (str, bytes))
