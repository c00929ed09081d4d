"""Running a PyTorch program in simulated processes, and in real ones to compare with."""

from __future__ import annotations

import ast
import atexit
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from kernbench.hardware import Machine
from kernbench.runtime_api import RuntimeContext
from kernbench.torch_bridge import run_torchrun

PROGRAMS = Path(__file__).parent / "programs"


def simulated(
    program: str | Path,
    *args: object,
    nprocs: int = 1,
    machine: str | Machine = "ahbm:4",
    data: bool = True,
    private: Sequence[str] = (),
    num_nodes: int = 1,
    hash_seeds: bool = False,
    is_last: bool = False,
    **options: Any,
) -> RuntimeContext:
    """Run a program of the folder (or a path) in this process and return its run.

    On several nodes ``nprocs`` are those of each.
    """
    path = PROGRAMS / program
    ranks = nprocs if num_nodes == 1 else None
    context = RuntimeContext(machine=machine, ranks=ranks, data=data, **options)
    code = compile(path.read_text(), str(path), "exec")
    # Programs may use what PyTorch deprecates.
    with context, warnings.catch_warnings():
        warnings.simplefilter("default")
        argv = [str(path), *map(str, args)]
        run_torchrun(
            context,
            path,
            code,
            argv,
            nprocs,
            private=private,
            num_nodes=num_nodes,
            hash_seeds=hash_seeds,
            is_last=is_last,
        )
    return context


def cases_of(
    program: str, marked: Iterable[tuple[Any, Sequence[str]]], other: Sequence[str]
) -> list[Any]:
    """Return the cases of a program for a parametrized test: its functions without parameters.

    Each has the marks beside which its name stands; ``other`` are those that other tests run.
    """
    import pytest

    names = [
        item.name
        for item in ast.parse((PROGRAMS / program).read_text()).body
        if isinstance(item, ast.FunctionDef)
        and not item.args.args
        and not item.name.startswith("_")
        and item.name not in other
    ]
    marks = {name: [mark for mark, cases in marked if name in cases] for name in names}
    unknown = {name for _, cases in marked for name in cases} - marks.keys()
    assert not unknown, unknown
    return [pytest.param(name, marks=marks[name], id=name) for name in names]


def real(program: str | Path, *args: object, nprocs: int = 1) -> None:
    """Run a program in real processes with gloo."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps([str(PROGRAMS / program), list(map(str, args)), nprocs]) + "\n")
    server.stdin.flush()
    failure = json.loads(server.stdout.readline())
    assert not failure, failure


@cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.torch_bridge.forked"],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )

    def end() -> None:
        server.communicate()

    atexit.register(end)
    return server


def results(folder: Path, name: str = "rank") -> list[Any]:
    """Return what each rank has saved."""
    import torch

    return [torch.load(path) for path in sorted(folder.glob(f"{name}*.pt"))]


def assert_same_bits(value: Any, expected: Any, where: str = "") -> int:
    """Compare nested results bit by bit and return how many tensors they hold."""
    import torch

    if isinstance(expected, torch.Tensor):
        assert torch.equal(value, expected), f"{where}: {(value - expected).abs().max()} apart"
        return 1
    if isinstance(expected, dict):
        assert value.keys() == expected.keys()
        return sum(assert_same_bits(value[k], expected[k], f"{where}.{k}") for k in expected)
    if isinstance(expected, list | tuple):
        assert len(value) == len(expected)
        return sum(
            assert_same_bits(a, b, f"{where}[{i}]")
            for i, (a, b) in enumerate(zip(value, expected, strict=True))
        )
    assert value == expected, where
    return 0
