from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path

import pytest

from kernbench.cli.programs.kinds import Kind, kind_of

BENCH, SCRIPT, PYTORCH = Kind.BENCH, Kind.SCRIPT, Kind.PYTORCH


@pytest.mark.adr("0149-D1")
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def run(torch, n: int = 3): ...", BENCH),
        ("import numpy as np\nnp.random.seed(0)\ndef run(ctx): ...", BENCH),
        ("import torch\ndef run(torch): ...\nif __name__ == '__main__':\n    run(torch)", BENCH),
        ("def run(args): ...\nrun(3)", SCRIPT),
        ("def run(): ...\nprint(1)", SCRIPT),
        ("from subprocess import run\nrun(['true'])", SCRIPT),
        ("class A:\n    def run(self, torch): ...\nA().run(3)", SCRIPT),
        ("import triton\nprint(1)", SCRIPT),
        ("", SCRIPT),
        ("def broken(", SCRIPT),
        ("import torch\nprint(torch)", PYTORCH),
        ("import torch.nn as nn", PYTORCH),
        ("def main():\n    from torch.nn import Linear\nmain()", PYTORCH),
        ("import model\nmodel.train()", PYTORCH),
        ("from package.layers import MLP\nMLP()", PYTORCH),
        ("from package import plain\nplain()", SCRIPT),
        ("import needs_torch\n", PYTORCH),
        ("import may_need_torch\n", PYTORCH),
        ("import needs_numpy\n", SCRIPT),
        ("from kernbench import ops\n", SCRIPT),
        ("from .sibling import torch", SCRIPT),
    ],
)
def test_a_file_is_what_its_syntax_tree_says(
    source: str, expected: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements = {
        "needs_torch": ["numpy", "torch>=2.4; python_version > '3.8'"],
        "may_need_torch": ["torch (>=2.4) ; extra == 'torch'"],
        "needs_numpy": ["numpy", "torchvision", "torch; extra == 'tests'"],
    }

    def requires(name: str) -> list[str] | None:
        if name not in requirements:
            raise metadata.PackageNotFoundError(name)
        return requirements[name]

    monkeypatch.setattr(metadata, "requires", requires)
    (tmp_path / "model.py").write_text("import model, layers\n")
    (tmp_path / "layers.py").write_text("try:\n    import torch\nfinally:\n    pass\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("import numpy\n")
    (tmp_path / "package" / "layers.py").write_text("import torch\n")
    program = tmp_path / "program.py"
    program.write_text(source)
    assert kind_of(str(program)) is expected


def test_an_import_that_may_fail_counts_where_pytorch_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text("try:\n    import torch\nexcept ImportError:\n    torch = None\n")
    for result, expected in ((None, SCRIPT), (object(), PYTORCH)):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, answer=result: answer)
        assert kind_of(str(program)) is expected


def test_names_and_missing_files_are_taken_for_benches(tmp_path: Path) -> None:
    assert kind_of("gemm") is BENCH
    assert kind_of(str(tmp_path / "missing.py")) is BENCH
    assert kind_of(str(tmp_path)) is BENCH
