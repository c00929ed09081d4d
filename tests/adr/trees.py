"""Files of Python, parsed once for all that look into them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernbench.op_log import uncollected

ROOT = Path(__file__).parents[2]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a test, which many look into."""
    with uncollected():
        return ast.parse(path.read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What tests ask of a module of the code; of its tree nothing stays, as there are hundreds."""

    imports: list[tuple[str, int]]
    """Modules that are imported, anywhere in the file, with the line of each."""
    variables: list[tuple[str, int]]
    """Names that are assigned to and parameters, with the line of each."""
    classes: list[tuple[str, int, set[str], set[str]]]
    """Classes: name, line, the bare names of what they inherit from, and of their members."""
    docstrings: list[tuple[str, int, str]]
    """Strings that stand by themselves, with line, and the class that each is in or nothing."""
    defined: set[str]
    """Names that the module binds, also under a condition."""


@cache
def facts(path: Path) -> Facts:
    """Return what there is in a module; none imports relative to itself."""
    with uncollected():
        return _facts_of(path, ast.parse(path.read_text(encoding="utf-8")))


def _facts_of(path: Path, module: ast.Module) -> Facts:
    imports, variables, classes = [], [], []
    for node in ast.walk(module):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                variables.append((node.id, node.lineno))
        elif isinstance(node, ast.arg):
            variables.append((node.arg, node.lineno))
        elif isinstance(node, ast.Import):
            imports += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            imports.append((node.module or "", node.lineno))
        elif isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
            classes.append((node.name, node.lineno, bases, set(members(node))))
    return Facts(
        imports=imports,
        variables=variables,
        classes=classes,
        docstrings=list(docstrings(module)),
        defined=set(defined(module.body)),
    )


@cache
def code(*folders: str) -> list[Path]:
    """Return the modules below folders of the repository."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def defined(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements of a module bind, also under a condition."""
    for node in body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for item in (leaf for target in targets for leaf in ast.walk(target)):
                if isinstance(item, ast.Name):
                    yield item.id
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from defined(node.body)
            yield from defined(getattr(node, "orelse", []))


def members(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names in a class, and the attributes that its methods set."""
    yield from defined(node.body)
    for item in ast.walk(node):
        if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store):
            yield item.attr


def docstrings(node: ast.AST, owner: str = "") -> Iterator[tuple[str, int, str]]:
    """Yield strings that stand by themselves, with their lines and the class that each is in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr):
            if isinstance(child.value, ast.Constant) and isinstance(child.value.value, str):
                yield child.value.value, child.lineno, owner
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from docstrings(child, child.name if isinstance(child, ast.ClassDef) else owner)
