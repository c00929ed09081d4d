"""Kernels and operators that PyTorch programs register, and libraries for them."""

from __future__ import annotations

import shutil
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from kernbench.errors import UsageError
from kernbench.runtime_api import RuntimeContext
from kernbench.torch_bridge.base.refusals import UnsupportedTorchError
from tests.torch_bridge.running import PROGRAMS, simulated


def run(folder: Path, source: str, **options: object) -> RuntimeContext:
    path = folder / "program.py"
    path.write_text(f"import os, torch\nrank = int(os.environ['RANK'])\n{source}")
    return simulated(path, **options)  # type: ignore[arg-type]


def names_of(context: RuntimeContext) -> list[str]:
    return [instance.template.name for instance in context.op_log.instances for _ in instance.ranks]


@pytest.mark.adr("0116-D1")
@pytest.mark.adr("0116-D2")
@pytest.mark.adr("0116-D4")
@pytest.mark.parametrize("data", [True, False])
def test_each_rank_runs_the_kernels_that_it_has_registered(data: bool) -> None:
    before = torch.library._impls
    for _ in range(2):
        # A second run finds nothing of the first.
        context = simulated("registrations.py", "data" if data else "no data", nprocs=2, data=data)
    assert names_of(context).count("double_kernel") > 20
    assert torch.library._impls is before
    assert "aten/abs/CUDA" not in before
    assert not any(item.startswith("kernbench_own") for item in before)
    assert not hasattr(torch.ops.kernbench_own, "one")
    assert torch.abs(torch.tensor(-1.0)) == 1


@pytest.mark.adr("0116-D3")
def test_what_a_library_registers_when_it_is_imported_is_for_all_ranks_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "site-packages"
    package = place / "kernbench_gems"
    package.mkdir(parents=True)
    # Which makes it a package that all ranks share.
    (package / f"_native{EXTENSION_SUFFIXES[0]}").touch()
    shutil.copy(PROGRAMS / "registering_library.py", package / "__init__.py")
    monkeypatch.syspath_prepend(str(place))
    try:
        for _ in range(2):
            simulated("libraries.py", "imported", nprocs=2)
    finally:
        sys.modules.pop("kernbench_gems").owner._destroy()


@pytest.mark.adr("0116-D3")
def test_libraries_of_before_a_run_are_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    older = torch.library.Library("aten", "IMPL")
    monkeypatch.setattr(torch, "_of_the_test", older, raising=False)
    for added in (5, 6):

        @torch.library.custom_op("kernbench_before::plus", mutates_args=())
        def plus(x: torch.Tensor, added: int = added) -> torch.Tensor:
            return x + added

        simulated("libraries.py", "of_before_the_run", added, nprocs=2)
        assert plus(torch.zeros(1), added).item() == added
    older._destroy()


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        (
            "own = torch.library.Library('kernbench_own', 'FRAGMENT')\n"
            "own.define('f(Tensor x) -> Tensor' if rank else 'f(Tensor x, int n) -> Tensor')",
            UsageError,
            "ranks share one dispatcher, so an operator must have one schema",
        ),
        (
            "own = torch.library.Library('kernbench_own', 'FRAGMENT')\n"
            "for _ in range(2): own.define('f(Tensor x) -> Tensor')",
            RuntimeError,
            "multiple times",
        ),
        (
            "torch.library.Library('_', 'IMPL').fallback(lambda *args: None, 'AutogradCUDA')",
            UnsupportedTorchError,
            "register kernels of single operators",
        ),
        (
            "torch.library.Library('aten', 'IMPL').impl('abs', torch.neg, 'CUBA')",
            RuntimeError,
            "CUBA",
        ),
        (
            "torch.library.Library('aten', 'IMPL').impl('kernbench_own::f', torch.neg, 'CUDA')",
            RuntimeError,
            "namespace",
        ),
        (
            "own = torch.library.Library('aten', 'IMPL')\n"
            "for _ in range(2): own.impl('abs', torch.neg, 'CUDA', allow_override=False)",
            RuntimeError,
            "already a kernel registered",
        ),
    ],
)
def test_mistakes_are_errors_of_their_rank(
    source: str, error: type[Exception], text: str, tmp_path: Path
) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        run(tmp_path, source, nprocs=2)
    exception = caught.value.exceptions[0]
    assert isinstance(exception, error)
    assert text in str(exception)


OPAQUE = """
from torch._library.opaque_object import OpaqueBase, is_opaque_value_type, register_opaque_type

class Name(OpaqueBase):
    def __init__(self, text):
        self.text = text

    def __eq__(self, other):
        return isinstance(other, Name) and self.text == other.text

    def __hash__(self):
        return hash(self.text)

    def __fx_repr__(self):
        return f"Name({self.text!r})", {"Name": Name}

assert not is_opaque_value_type(Name)
register_opaque_type(Name, typ="value", hoist=True)
assert is_opaque_value_type(Name)
try:
    register_opaque_type(Name, typ="value")
except RuntimeError as error:
    print("once per process:", error)
"""


def test_each_rank_registers_opaque_types_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "opaque.py"
    program.write_text(OPAQUE)
    simulated(program, nprocs=2)
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said] == ["once per process"] * 2
