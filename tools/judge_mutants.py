"""Mutants of kernels, judged: how many of them the judge finds, and which it does not.

    python tools/judge_mutants.py CANDIDATE=TASK... [--most 10] [--json FILE]

Of each candidate's kernels one place at a time is changed: a mask, a stride, a bound, an operand, a
type, an accumulator, an axis. The candidate itself must be right. What is not found is printed with
its change, to be looked at: some changes have no effect (a mask of a size that fits).
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from kernbench.judging import Judge

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


def mutants(text: str, most: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yield changed texts, each with what was changed and where; at most so many, drawn by seed."""

    def places(tree: ast.Module) -> list[tuple[str, Callable[[], None]]]:
        return [
            (f"{name} at line {node.lineno}", change)
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef)
            and any("jit" in ast.unparse(item) for item in function.decorator_list)
            for entry in function.body
            for node in ast.walk(entry)
            if isinstance(node, ast.expr | ast.stmt)
            for name, change in _changes(node)
        ]

    count = len(places(ast.parse(text)))
    for index in sorted(random.Random(seed).sample(range(count), min(most, count))):
        tree = ast.parse(text)
        name, change = places(tree)[index]
        change()
        changed = ast.unparse(tree)
        if changed != ast.unparse(ast.parse(text)):
            yield name, changed


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
            whole = judge(candidate, task, times=False, seed=1)
            print(f"{candidate}: {whole.outcome}: {whole.why}", flush=True)
            rows.append({"candidate": candidate, "change": "", "outcome": str(whole.outcome)})
            if not whole.is_right:
                continue
            for name, text in mutants(Path(candidate).read_text(), options.most):
                path = Path(folder) / Path(candidate).name
                path.write_text(text)
                verdict = judge(path, task, times=False, seed=1)
                rows.append(
                    {"candidate": candidate, "change": name, "outcome": str(verdict.outcome)}
                )
                if verdict.is_right:
                    print(f"  not found: {name}", flush=True)
    changed = [row for row in rows if row["change"]]
    missed = [item for item in changed if item["outcome"].startswith("right")]
    value = [row for row in rows if not row["change"]]
    wrong = [item for item in value if item["outcome"] in ("wrong", "cheat")]
    print(
        f"{len(changed) - len(missed)} of {len(changed)} mutants found; "
        f"{len(wrong)} of {len(value)} kernels called wrong"
    )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
