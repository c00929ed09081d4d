"""Installed packages: each rank imports them for itself, but for those that all must share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.errors import KernbenchError  # noqa: E402
from kernbench.torch_bridge import check_private  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402

EXTENSION = f"_native{EXTENSION_SUFFIXES[0]}"
STATEFUL = """
import functools
import os

import torch.distributed as dist

RANK = os.environ.get("RANK")
value, table, names = None, {}, []

class Singleton(type):
    made = {}
    def __call__(cls, *args):
        if cls in Singleton.made:
            raise ValueError(f"{cls.__name__} is there already")
        Singleton.made[cls] = super().__call__(*args)
        return Singleton.made[cls]

class Settings(metaclass=Singleton):
    kept = None

class Tracker:
    def note(self, what):
        self.what = what

tracker = Tracker()

@functools.cache
def rank():
    return dist.get_rank()

def keep(what):
    global value
    value = what
    table["value"] = what
    names.append(what)
    tracker.note(what)
    Settings().own = what
    Settings.kept = what

def kept():
    own = Singleton.made[Settings].own
    return {value, table["value"], *names, tracker.what, own, Settings.kept, rank(), int(RANK)}
"""


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
    for each, text in files.items():
        (package / f"{each}.py").write_text(text)


def program(tmp_path: Path, source: str) -> Path:
    path = tmp_path / "program.py"
    path.write_text(f'import torch.distributed as dist\ndist.init_process_group("gloo")\n{source}')
    return path


@pytest.mark.adr("0113-D1")
def test_whatever_a_package_keeps_each_rank_keeps_for_itself(tmp_path: Path, site: Path) -> None:
    install(site, "kb_stateful_package", state=STATEFUL)
    # One that itself keeps nothing, but knows one that does.
    (site / "kb_user_of_it.py").write_text("from kb_stateful_package.state import keep, kept")
    simulated(
        program(
            tmp_path,
            """
import kb_user_of_it
import kb_stateful_package.state as state

rank = dist.get_rank()
kb_user_of_it.keep(rank)
dist.barrier()
assert state.kept() == kb_user_of_it.kept() == {rank}, state.kept()
""",
        ),
        nprocs=3,
    )
    assert not any(name.startswith("kb_") for name in sys.modules)


SHARING = """
import kb_native_package as package
import pathlib
rank = dist.get_rank()
package.ranks.append(rank)
dist.barrier()
pathlib.Path(f"{sys.argv[1]}/{rank}").write_text(f"{sorted(package.ranks)}")
"""


@pytest.mark.adr("0113-D2")
@pytest.mark.parametrize("is_asked", [False, True])
def test_a_package_with_extension_modules_is_shared_unless_it_is_asked_for(
    tmp_path: Path, site: Path, is_asked: bool
) -> None:
    install(site, "kb_native_package", "ranks = []")
    (site / "kb_native_package" / EXTENSION).write_bytes(b"")
    path = program(tmp_path, f"import sys\n{SHARING}")
    simulated(path, tmp_path, nprocs=2, private=["kb_native_package"] if is_asked else [])
    found = [(tmp_path / f"{rank}").read_text() for rank in range(2)]
    assert found == (["[0]", "[1]"] if is_asked else ["[0, 1]"] * 2)


@pytest.mark.adr("0113-D2")
def test_what_transformers_requires_is_shared_with_it(tmp_path: Path, site: Path) -> None:
    for name, requires in (
        ("transformers", ["kb-required.package>=1", 'an-optional-package; extra == "more"']),
        ("kb_required_package", ["kb-deeper-package ; python_version >= '3'"]),
    ):
        folder = site / f"{name}-1.0.dist-info"
        folder.mkdir()
        lines = "".join(f"Requires-Dist: {each}\n" for each in requires)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n{lines}")
    shared = ("transformers", "kb_required_package", "kb_deeper_package")
    for name in (*shared, "an_optional_package"):
        install(site, name, "ranks = []")
    path = program(
        tmp_path,
        f"""
import importlib
for name in {(*shared, "an_optional_package")!r}:
    package = importlib.import_module(name)
    package.ranks.append(dist.get_rank())
    dist.barrier()
    assert len(package.ranks) == (2 if name in {shared!r} else 1), name
""",
    )
    try:
        simulated(path, nprocs=2)
    finally:
        sys.modules.pop("transformers", None)


@pytest.mark.adr("0113-D3")
def test_what_a_shared_package_imports_is_no_ranks(tmp_path: Path, site: Path) -> None:
    install(site, "kb_pure_package", "import os\nrank = os.environ.get('RANK')\nkept = []")
    install(site, "kb_native_package", "import kb_pure_package as known")
    (site / "kb_native_package" / EXTENSION).write_bytes(b"")
    simulated(
        program(
            tmp_path,
            """
rank = dist.get_rank()
if rank == 1:
    # Whoever is first, and whatever it has imported before.
    import kb_pure_package
    kb_pure_package.kept.append(rank)
    import kb_native_package
dist.barrier()
import kb_native_package, kb_pure_package
assert kb_pure_package.rank == str(rank)
assert kb_pure_package.kept == ([1] if rank == 1 else [])
assert kb_native_package.known is not kb_pure_package
assert (kb_native_package.known.rank, kb_native_package.known.kept) == (None, [])
""",
        ),
        nprocs=2,
    )


def test_modules_that_only_some_ranks_have_are_only_theirs(tmp_path: Path, site: Path) -> None:
    for name in ("kb_one", "kb_two"):
        install(site, name, "who = None", part="")
    simulated(
        program(
            tmp_path,
            """
import sys
rank = dist.get_rank()
def seen():
    return [each for each in sorted(sys.modules) if each.startswith("kb_")]
if rank == 0:
    import kb_one.part
    kb_one.who = "rank 0"
dist.barrier()
assert seen() == (["kb_one", "kb_one.part"] if rank == 0 else [])
if rank == 1:
    import kb_two
    import kb_one
    del sys.modules["kb_one"]
if rank == 2:
    sys.modules["kb_two"] = None
dist.barrier()
assert seen() == [["kb_one", "kb_one.part"], ["kb_two"], ["kb_two"]][rank]
try:
    import kb_two
    assert rank != 2
except ImportError:
    assert rank == 2
import kb_one
assert kb_one.who == ("rank 0" if rank == 0 else None)
""",
        ),
        nprocs=3,
    )


def test_a_module_may_wait_for_other_ranks_while_it_is_imported(tmp_path: Path, site: Path) -> None:
    install(site, "kb_meeting_package", "import torch.distributed as dist\ndist.barrier()\nmet = 1")
    waiting = "import time\nstarted = 1\ntime.sleep(1)\nended = 1"
    install(site, "kb_native_package", waiting)
    (site / "kb_native_package" / EXTENSION).write_bytes(b"")
    (site / "kb_slow_module.py").write_text(waiting)
    simulated(
        program(
            tmp_path,
            """
import kb_meeting_package
assert kb_meeting_package.met
# All ranks find the one that is being imported by the first.
import kb_native_package
assert kb_native_package.ended
import threading, time
def imports():
    import kb_slow_module
    assert kb_slow_module.ended
threads = [threading.Thread(target=imports) for _ in range(3)]
began = time.monotonic()
for each in threads:
    each.start()
for each in threads:
    each.join()
assert 1 <= time.monotonic() - began < 1.5
""",
        ),
        nprocs=2,
    )


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
        simulated(program(tmp_path, ""), nprocs=2, private=[name])
