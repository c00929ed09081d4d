"""ADR-0013: who may import whom, read from the source itself."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

from tests.adr.trees import ROOT, code, facts

SOURCE = ROOT / "src"

# Third party: the modules that may import it (a package, or one module of it).
SEAMS = {
    "simpy": ("kernbench.clock",),
    "greenlet": ("kernbench.clock.carriers",),
    "triton": (
        "kernbench.triton_backend",
        "kernbench.ops",
        "kernbench.tp.kernels",
        # Candidates are kernels of Triton, and the judge launches their text.
        "kernbench.judging",
        # Programs, which no module imports.
        "validation.programs.loops",
    ),
    # Files that users write, machines and studies, or get from others: saved runs; and tables of
    # sources.
    "pydantic": (
        "kernbench.hardware",
        "kernbench.cli.sweeps.study",
        "kernbench.saved",
        # Descriptions of arguments, as the package mcp asks for them.
        "kernbench.service.tools",
        # Data that is checked as machines are.
        "kernbench.accuracy.rows.forms",
        "validation.programs.sources",
        "validation.sources",
    ),
    "mcp": ("kernbench.service",),
    "starlette": ("kernbench.service",),
    "uvicorn": ("kernbench.service",),
    "torch": (
        "kernbench.torch_bridge",
        # What is judged are PyTorch's operations, executed one by one.
        "kernbench.judging",
        "kernbench.plans.programs.train",
        "kernbench.serving.program",
        "kernbench.accuracy.measurement.cuda",
        # Programs, which no module imports, and the process that they run in.
        "validation.programs.loops",
        "validation.programs.child",
        "validation.programs.old_inductor",
        # What PyTorch itself estimates stands beside the model.
        "validation.scores.estimates",
    ),
}


@cache
def modules() -> list[tuple[str, Path, list[tuple[str, int]]]]:
    """Return every module with its file, and what it imports, with lines."""
    result = []
    for path in code("src/kernbench", "validation"):
        base = SOURCE if path.is_relative_to(SOURCE) else ROOT
        parts = path.relative_to(base).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        result.append((name, path, facts(path).imports))
    return result


def is_inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def package_of(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[: 3 if parts[:2] == ["kernbench", "accuracy"] else 2])


@pytest.mark.adr("0013-D1")
def test_the_layers_of_the_house_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert lint_imports(no_cache=True) == EXIT_STATUS_SUCCESS


@pytest.mark.adr("0013-D2")
@pytest.mark.parametrize("party", SEAMS)
def test_a_third_party_is_imported_behind_its_seam_only(party: str) -> None:
    outside = [
        f"{path.relative_to(ROOT)}:{line}"
        for module, path, result in modules()
        for imported, line in result
        if is_inside(imported, party) and not any(is_inside(module, seam) for seam in SEAMS[party])
    ]
    assert not outside, f"{party} is imported outside of {SEAMS[party]}"


@pytest.mark.adr("0013-D3")
def test_packages_import_from_each_other_not_past_each_other() -> None:
    past = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for module, path, result in modules()
        for imported, line in result
        if is_inside(imported, "kernbench")
        and imported != "kernbench"
        # Commands take the place of kernbench's own, and are made of their parts.
        and not is_inside(module, "validation.commands")
        # Functions are commands without their texts.
        and not (is_inside(module, "kernbench.api") and is_inside(imported, "kernbench.cli"))
        and package_of(imported) not in (imported, package_of(module))
    ]
    assert not past
