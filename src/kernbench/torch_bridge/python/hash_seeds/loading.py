"""Compiling the modules that a rank imports for itself so that their sets are of its own types."""

from __future__ import annotations

import ast
import marshal
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from kernbench.torch_bridge.python.hash_seeds.sets import OPERATORS, OwnFrozenSet, OwnSet, hash_of

_OF_DISPLAYS, _OF_VIEWS = "__kernbench_set__", "__kernbench_{}__"
NAMES: dict[str, Any] = {
    "set": OwnSet,
    "frozenset": OwnFrozenSet,
    "hash": hash_of,
    _OF_DISPLAYS: OwnSet,
    **{_OF_VIEWS.format(name): function for name, function in OPERATORS.items()},
}
"""What such a module finds under these names, in place of what is built in."""

_OPERATORS = {ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor", ast.Sub: "sub"}


class _Displays(ast.NodeTransformer):
    """Passes what displays, comprehensions and keys of dictionaries make to the type of sets."""

    def visit_Set(self, node: ast.Set) -> ast.AST:
        return _call(_OF_DISPLAYS, [self.generic_visit(node)], node)

    def visit_SetComp(self, node: ast.SetComp) -> ast.AST:
        return _call(_OF_DISPLAYS, [self.generic_visit(node)], node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """``names.keys() & others``: a set that a method of dictionaries makes."""
        name = _OPERATORS.get(type(node.op))
        is_of_view = _is_view(node.left) or _is_view(node.right)
        self.generic_visit(node)
        if name is None or not is_of_view:
            return node
        return _call(_OF_VIEWS.format(name), [node.left, node.right], node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Leave the set of ``x in {...}`` to Python, which makes it once: it has no order."""
        node.left = self.visit(node.left)
        node.comparators = [
            self.generic_visit(value)  # type: ignore[misc]
            if isinstance(value, ast.Set) and isinstance(operator, (ast.In, ast.NotIn))
            else self.visit(value)
            for operator, value in zip(node.ops, node.comparators, strict=True)
        ]
        return node


def _is_view(node: ast.AST) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(function, ast.Attribute) and function.attr in ("items", "keys")


def _call(function: str, arguments: list[Any], where: ast.AST) -> ast.AST:
    name = ast.copy_location(ast.Name(function, ast.Load()), where)
    return ast.copy_location(ast.Call(func=name, args=arguments, keywords=[]), where)


@lru_cache(maxsize=512)
def _marshalled(source: bytes, path: str) -> bytes:
    """Return the code of a module, which many ranks import."""
    tree = _Displays().visit(ast.parse(source, path))
    return marshal.dumps(compile(tree, path, "exec", dont_inherit=True))


def compiled(source: bytes, path: str) -> CodeType:
    """Return a module's code, no other's: the compiler keeps what it compiles with the code."""
    code: CodeType = marshal.loads(_marshalled(source, path))
    return code


class SeededLoader(SourceFileLoader):
    """Loads a module of a rank's own."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return compiled(self.get_data(path), path)

    def exec_module(self, module: ModuleType) -> None:
        names: dict[str, Any] = module.__dict__
        names.update(NAMES)
        super().exec_module(module)
