"""Which PyTorch is taken, and that nothing needs it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from kernbench.torch_bridge import SUPPORTED, TorchVersionError, check_torch
from tests.releases import LIBRARIES

ROOT = Path(__file__).parents[3]


def pretend(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    def version(name: str) -> str:
        assert name == "torch"
        if text is None:
            raise metadata.PackageNotFoundError(name)
        return text

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.adr("0060-D4")
def test_a_release_that_is_not_supported_is_refused_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, "9.1.0+cpu")
    with pytest.raises(TorchVersionError, match=rf"{SUPPORTED[-1]}, but 9\.1\.0\+cpu is installed"):
        check_torch()


@pytest.mark.adr("0060-D4")
def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, None)
    with pytest.raises(TorchVersionError, match=r'pip install "kernbench\[torch\]"'):
        check_torch()


def test_every_patch_release_of_a_supported_minor_release_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, f"{SUPPORTED[0]}.7+cpu")
    assert check_torch() == f"{SUPPORTED[0]}.7+cpu"


def test_the_extra_installs_a_supported_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = project["optional-dependencies"]["torch"]
    major, minor = SUPPORTED[-1].split(".")
    assert wanted == f"torch>={SUPPORTED[0]},<{major}.{int(minor) + 1}"


@pytest.mark.adr("0061-D3")
def test_the_releases_that_are_taken_are_those_that_are_tested_and_told() -> None:
    told = (ROOT / "docs/pytorch.md").read_text().partition("## A program")[0]
    assert LIBRARIES["torch"].minors == tuple(reversed(SUPPORTED))
    assert ", ".join(reversed(SUPPORTED)) in told
    source = "".join(
        path.read_text() for path in (ROOT / "src/kernbench/torch_bridge").rglob("*.py")
    )
    assert "torch.__version__" not in source


@pytest.mark.adr("0060-D4")
def test_importing_kernbench_and_its_bridge_imports_no_torch() -> None:
    code = (
        "import sys, kernbench, kernbench.cli, kernbench.runtime_api, kernbench.torch_bridge;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
