"""No test shows only that nothing raises: each asserts, or names what does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.adr.trees import tree

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
CLAIMS = {"raises", "warns", "fail", "deprecated_call"}
"""What of pytest fails by itself, beside functions whose names begin with assert."""

ASSERTS = re.compile(r"(?:^|[;:])\s*(?:assert\b|raise AssertionError|[\w.]+\.assert_\w+\()", re.M)
"""A statement of a program in a string; many are pieces that do not parse by themselves."""

Definition = tuple[Path, ast.AST]


@cache
def definitions(path: Path) -> dict[str, Definition]:
    """Return what the names of a file are: its functions, values, and imports from other tests."""
    result: dict[str, Definition] = {}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
            folder = ROOT.joinpath(*(node.module or "").split("."))
            for alias in node.names:
                name = alias.asname or alias.name
                if (module := folder / f"{alias.name}.py").exists():
                    result[name] = (module, tree(module))
                elif (module := folder.with_suffix(".py")).exists():
                    result[name] = definitions(module).get(alias.name, (path, node))
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            result[node.name] = (path, node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    result[target.id] = (path, node.value)
    return result


def named(path: Path, node: ast.AST) -> Iterator[Definition]:
    """Yield what a name, a module's name, a program's text or its file's name stands for."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        module, of_module = definitions(path).get(node.value.id, (path, None))
        if isinstance(of_module, ast.Module) and node.attr in definitions(module):
            yield definitions(module)[node.attr]
    elif isinstance(node, ast.Name) and node.id in definitions(path):
        definition = definitions(path)[node.id]
        if not isinstance(definition[1], ast.Module):
            yield definition
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
        if text.endswith(".py") and "\n" not in text:
            for folder in folders_of(path):
                if (folder / text).is_file():
                    yield folder / text, tree(folder / text)
        elif ASSERTS.search(text):
            yield path, ast.Assert(ast.Constant(True))


def folders_of(path: Path) -> list[Path]:
    """Return the folders of the programs that a test runs."""
    inside = path.relative_to(TESTS).parts if path.is_relative_to(TESTS) else ()
    own = TESTS / inside[0] / "programs" if len(inside) > 1 else path.parent
    return [own, TESTS / "programs"]


def cases_of(program: ast.Module, test: ast.AST) -> list[ast.stmt]:
    """Return what a program runs for a test: if globals() chooses it, the cases that are named."""
    if not any(isinstance(node, ast.Name) and node.id == "globals" for node in ast.walk(program)):
        return program.body
    functions = {item.name: item for item in program.body if isinstance(item, ast.FunctionDef)}
    words = {node.value for node in ast.walk(test) if isinstance(node, ast.Constant)}
    cases = [function for name, function in functions.items() if name in words]
    own = [item for item in program.body if not isinstance(item, ast.FunctionDef)]
    return [*cases, *own]


def asserts(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name: str = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return name in CLAIMS or name.startswith("assert")
    return isinstance(node, ast.Assert)


def claims(path: Path, node: ast.AST, seen: set[int], test: ast.AST) -> bool:
    """Say whether something holds an assertion, or names something that does."""
    if id(node) in seen:
        return False
    seen.add(id(node))
    if isinstance(node, ast.Module):
        return any(claims(path, item, seen, test) for item in cases_of(node, test))
    within = list(ast.walk(node))
    return any(map(asserts, within)) or any(
        claims(*result, seen, test) for item in within for result in named(path, item)
    )


def silent(paths: list[Path]) -> list[str]:
    """Return the tests of some files in which nothing but an exception can fail."""
    return [
        f"{path.name}:{node.lineno} {node.name}"
        for path in paths
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not claims(path, node, set(), node)
    ]


def test_every_test_asserts_something() -> None:
    result = silent([*TESTS.rglob("test_*.py"), *(ROOT / "benches").rglob("test_*.py")])
    assert not result, f"these show only that nothing raises: {result}"


def test_one_that_only_calls_is_found_and_one_whose_helper_asserts_is_not(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(
        "def checked(x):\n    assert x\n"
        "def called(x):\n    print(x)\n"
        "def test_calls():\n    called(1)\n"
        "def test_asks_a_helper():\n    checked(1)\n"
        "def test_hands_it_on():\n    called(checked)\n"
        "def test_runs_a_program():\n    called('''assert 1 == 1''')\n"
        "def test_speaks_of_it():\n    called('to assert is good')\n"
        "def test_runs_a_case():\n    called('cases.py', 'checks')\n"
        "def test_runs_another():\n    called('cases.py', 'prints')\n"
    )
    program = "def checks():\n    assert 1\ndef prints():\n    print()\n"
    program += "import sys\nglobals()[sys.argv[1]]()\n"
    (tmp_path / "cases.py").write_text(program)
    assert silent([path]) == [
        "test_it.py:5 test_calls",
        "test_it.py:13 test_speaks_of_it",
        "test_it.py:17 test_runs_another",
    ]
