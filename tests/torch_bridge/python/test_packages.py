"""Installed packages: each rank imports them for itself, but for those that all must share."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import KernbenchError  # noqa: E402
from kernbench.torch_bridge import check_private  # noqa: E402
from tests.torch_bridge.running import PROGRAMS, simulated  # noqa: E402

EXTENSION = f"_native{EXTENSION_SUFFIXES[0]}"
PROGRAM = "packages.py"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a test installs packages; they are forgotten in the end."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    before = set(sys.modules)
    yield folder
    for name in [name for name in set(sys.modules) - before if name.startswith("kb_")]:
        del sys.modules[name]


def install(site: Path, name: str, source: str = "", **files: str) -> None:
    package = site / name
    package.mkdir()
    (package / "__init__.py").write_text(source)
    for item, text in files.items():
        (package / f"{item}.py").write_text(text)


@pytest.mark.adr("0113-D1")
def test_whatever_a_package_keeps_each_rank_keeps_for_itself(site: Path) -> None:
    install(site, "kb_stateful_package")
    shutil.copy(PROGRAMS / "stateful_package.py", site / "kb_stateful_package" / "state.py")
    # One that itself keeps nothing, but knows one that does.
    (site / "kb_user_of_it.py").write_text("from kb_stateful_package.state import keep, kept")
    simulated(PROGRAM, "state_of_its_own", nprocs=3)
    assert not any(name.startswith("kb_") for name in sys.modules)


@pytest.mark.adr("0113-D2")
@pytest.mark.parametrize("is_asked", [False, True])
def test_a_package_with_extension_modules_is_shared_unless_it_is_asked_for(
    tmp_path: Path, site: Path, is_asked: bool
) -> None:
    # What a rank puts into a list would be its own in a shared package, too (ADR-0226).
    install(site, "kb_native_package", "from array import array\nranks = array('i')")
    (site / "kb_native_package" / EXTENSION).write_bytes(b"")
    package = "kb_native_package"
    private = [package] if is_asked else []
    simulated(PROGRAM, "sharing", tmp_path, package, nprocs=2, private=private)
    texts = [(tmp_path / f"{rank}").read_text() for rank in range(2)]
    assert texts == (["[[0]]", "[[1]]"] if is_asked else ["[[0, 1]]"] * 2)


@pytest.mark.adr("0113-D2")
def test_what_transformers_requires_is_shared_with_it(tmp_path: Path, site: Path) -> None:
    for name, requires in (
        ("transformers", ["kb-required.package>=1", 'an-optional-package; extra == "more"']),
        ("kb_required_package", ["kb-deeper-package ; python_version >= '3'"]),
    ):
        folder = site / f"{name}-1.0.dist-info"
        folder.mkdir()
        lines = "".join(f"Requires-Dist: {require}\n" for require in requires)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n{lines}")
    shared = ("transformers", "kb_required_package", "kb_deeper_package")
    for name in (*shared, "an_optional_package"):
        install(site, name, "ranks = []")
    try:
        simulated(PROGRAM, "sharing", tmp_path, *shared, "an_optional_package", nprocs=2)
    finally:
        sys.modules.pop("transformers", None)
    for rank in range(2):
        met = [*[[0, 1]] * len(shared), [rank]]
        assert (tmp_path / f"{rank}").read_text() == str(met)


@pytest.mark.adr("0113-D2")
def test_adapters_that_transformers_looks_for_are_shared_with_it(
    tmp_path: Path, site: Path
) -> None:
    install(site, "peft", "ranks = []")
    try:
        simulated(PROGRAM, "sharing", tmp_path, "peft", nprocs=2)
    finally:
        sys.modules.pop("peft", None)
    assert [(tmp_path / f"{rank}").read_text() for rank in range(2)] == ["[[0, 1]]"] * 2


@pytest.mark.adr("0113-D3")
def test_what_a_shared_package_imports_is_no_ranks(site: Path) -> None:
    install(site, "kb_pure_package", "import os\nrank = os.environ.get('RANK')\nkept = []")
    install(site, "kb_native_package", "import kb_pure_package as known")
    (site / "kb_native_package" / EXTENSION).write_bytes(b"")
    simulated(PROGRAM, "what_a_shared_one_imports", nprocs=2)


def test_modules_that_only_some_ranks_have_are_only_theirs(site: Path) -> None:
    for name in ("kb_one", "kb_two"):
        install(site, name, "who = None", part="")
    simulated(PROGRAM, "modules_of_some_ranks", nprocs=3)


def test_a_module_may_wait_for_other_ranks_while_it_is_imported(site: Path) -> None:
    install(site, "kb_meeting_package", "import torch.distributed as dist\ndist.barrier()\nmet = 1")
    waiting = "import time\nstarted = 1\ntime.sleep(1)\nended = 1"
    install(site, "kb_native_package", waiting)
    (site / "kb_native_package" / EXTENSION).write_bytes(b"")
    (site / "kb_slow_module.py").write_text(waiting)
    simulated(PROGRAM, "imports_that_wait", nprocs=2)


@pytest.mark.adr("0113-D4")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("kb_stateful_packag", "no such package; did you mean kb_stateful_package"),
        ("kb_stateful_package.state", "a whole package.*: give kb_stateful_package"),
        ("json", "a part of Python itself"),
        ("torch", "kernbench or PyTorch uses it"),
        ("", "no such package"),
    ],
)
def test_what_cannot_be_private_is_refused_by_name(
    tmp_path: Path, site: Path, name: str, says: str
) -> None:
    install(site, "kb_stateful_package")
    check_private(["kb_stateful_package"], tmp_path)
    with pytest.raises(KernbenchError, match=says):
        check_private([name], tmp_path)
    with pytest.raises(KernbenchError, match=says):
        simulated(PROGRAM, "nothing", nprocs=2, private=[name])
