"""Mutants of kernels, judged: how many of them the judge finds, and which it does not.

    python tools/judge_mutants.py CANDIDATE=TASK... [--most 10] [--json FILE]

Of each candidate's kernels one place at a time is changed: a mask, a stride, a bound, an operand, a
type, an accumulator, an axis. The candidate itself must be right. What is not found is printed with
its change, to be looked at: some changes have no effect (a mask of a size that fits). A change in
what no input of the task compiles counts for nothing.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from kernbench.errors import UsageError
from kernbench.judging import Judge, Verdict

_SWAPPED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.BitAnd: ast.BitOr,
}
_CALLS = {
    "sum": "max",
    "max": "min",
    "min": "max",
    "exp": "exp2",
    "cdiv": "minimum",
    "zeros": "ones",
}
_TYPES = {"float32": "float16", "int64": "int32", "float16": "bfloat16"}


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield what may be changed at a node: what it is called, and what does it."""
    if isinstance(node, ast.BinOp) and type(node.op) in _SWAPPED:
        new = _SWAPPED[type(node.op)]
        yield f"{type(node.op).__name__} to {new.__name__}", lambda: setattr(node, "op", new())
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPPED:
        other = _SWAPPED[type(node.ops[0])]
        yield (
            f"{type(node.ops[0]).__name__} to {other.__name__}",
            lambda: setattr(node, "ops", [other()]),
        )
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield "a sum that forgets", lambda: setattr(node, "op", ast.Sub())
    if isinstance(node, ast.Attribute) and node.attr in _TYPES:
        yield f"{node.attr} narrowed", lambda: setattr(node, "attr", _TYPES[node.attr])
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in _CALLS:
            yield f"{name} to {_CALLS[name]}", lambda: setattr(node.func, "attr", _CALLS[name])
        masks = [keyword for keyword in node.keywords if keyword.arg == "mask"]
        if masks:
            yield "no mask", lambda: node.keywords.remove(masks[0])
        axes = [
            argument
            for argument in [*node.args, *(k.value for k in node.keywords)]
            if _is_axis(argument)
        ]
        if axes and name in ("program_id", "sum", "max", "min", "arange"):
            constant = axes[0]
            assert isinstance(constant, ast.Constant)
            value = int(constant.value == 0)
            yield f"{name}, axis to {value}", lambda: setattr(constant, "value", value)


def _is_axis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value in (0, 1)


def _statements(block: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], ast.stmt, list[ast.AST]]]:
    """Yield the statements of a block and of those in it: with its block, and what is only its."""
    for statement in block:
        inner = [getattr(statement, name, []) for name in ("body", "orelse")]
        below = {id(node) for part in inner for item in part for node in ast.walk(item)}
        yield block, statement, [node for node in ast.walk(statement) if id(node) not in below]
        for part in inner:
            yield from _statements(part)


def mutants(text: str, most: int, seed: int = 0) -> Iterator[tuple[str, str, str]]:
    """Yield changes drawn by seed, at most so many: what and where, the changed text, and a probe.

    The probe is a text that does not compile where the change was; if that makes no difference,
    nothing compiles that place.
    """

    def places(tree: ast.Module) -> list[tuple[str, Callable[[], None], Callable[[], None]]]:
        probe = ast.parse("tl.static_assert(False)").body[0]
        return [
            (
                f"{name} at line {statement.lineno}",
                change,
                partial(block.insert, block.index(statement), probe),
            )
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef)
            and any("jit" in ast.unparse(item) for item in function.decorator_list)
            for block, statement, nodes in _statements(function.body)
            for node in nodes
            for name, change in _changes(node)
        ]

    def changed(index: int, which: int) -> tuple[str, str]:
        tree = ast.parse(text)
        place = places(tree)[index]
        place[which]()
        return place[0], ast.unparse(ast.fix_missing_locations(tree))

    count = len(places(ast.parse(text)))
    for index in sorted(random.Random(seed).sample(range(count), min(most, count))):
        name, mutant = changed(index, 1)
        if mutant != ast.unparse(ast.parse(text)):
            yield name, mutant, changed(index, 2)[1]


def main() -> None:
    """Judge mutants and print what was found of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pairs", nargs="+", metavar="CANDIDATE=TASK")
    parser.add_argument("--most", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with Judge() as judge, tempfile.TemporaryDirectory() as folder:
        for pair in options.pairs:
            candidate, _, task = pair.partition("=")
            try:
                whole = judge(candidate, task, times=False, seed=1)
            except UsageError as error:
                print(f"{candidate}: the task fails by itself: {error}", flush=True)
                continue
            print(f"{candidate}: {whole.outcome}: {whole.why}", flush=True)
            rows.append({"candidate": candidate, "change": "", "outcome": str(whole.outcome)})
            if not whole.is_right:
                continue
            path = Path(folder) / Path(candidate).name

            def judged(text: str, path: Path = path, task: str = task) -> Verdict:
                path.write_text(text)
                return judge(path, task, times=False, seed=1)

            # TritonBench's kernels end with a line of #, behind it their own tests.
            kernels = Path(candidate).read_text().partition("#" * 100)[0]
            for name, text, probe in mutants(kernels, options.most):
                verdict = judged(text)
                if verdict.is_right and judged(probe).is_right:
                    print(f"  not compiled: {name}", flush=True)
                    continue
                rows.append(
                    {"candidate": candidate, "change": name, "outcome": str(verdict.outcome)}
                )
                if verdict.is_right:
                    print(f"  not found: {name}", flush=True)
            if options.json:  # what there is, if the rest takes too long
                options.json.write_text(json.dumps(rows, indent=2) + "\n")
    changed = [row for row in rows if row["change"]]
    missed = [item for item in changed if item["outcome"].startswith("right")]
    value = [row for row in rows if not row["change"]]
    wrong = [item for item in value if item["outcome"] in ("wrong", "cheat")]
    print(
        f"{len(changed) - len(missed)} of {len(changed)} mutants found; "
        f"{len(wrong)} of {len(value)} kernels called wrong"
    )


if __name__ == "__main__":
    main()
