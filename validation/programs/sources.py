"""Repositories that have the programs of rows, at the commits that are run.

    python -m validation.programs.sources FOLDER [--from CLONES]

clones each into FOLDER, one folder per commit; with ``--from`` out of a folder that has clones of
them (``OWNER+NAME`` or ``NAME``), without a network.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pydantic import TypeAdapter

from kernbench.inputs import shipped_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A repository, and the commits that programs are run at."""

    owner: str
    name: str
    commits: tuple[str, ...]
    built: tuple[str, ...] = ()
    """Folders in it whose makefile builds an extension of Python, with pybind11."""
    paths: tuple[str, ...] = (".",)
    """What of it is checked out."""

    @property
    def url(self) -> str:
        return f"https://github.com/{self.owner}/{self.name}"


SOURCES = TypeAdapter(tuple[Source, ...]).validate_python(
    shipped_yaml("validation.programs", "sources.yaml")
)


def folder_of(programs: Path, name: str, commit: str) -> Path:
    """Return where ``make programs`` puts a commit of a repository."""
    return programs / f"{name}-{commit}"


def fetch(source: Source, programs: Path, clones: Path | None = None) -> None:
    """Check out the commits of a repository, cloned or out of a folder of clones, and build it.

    Raises:
        SystemExit: Git or make fails; it has said why.
    """
    origin = source.url if clones is None else str(_clone_of(source, clones))
    for commit in source.commits:
        folder = folder_of(programs, source.name, commit)
        if folder.exists():
            continue
        # Whole or not at all: what fails half-way is begun again next time.
        part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        # Of a server, no more than what is checked out.
        less = ["--filter=blob:none"] if clones is None else []
        _run(["git", "clone", "--quiet", "--no-checkout", *less, origin, str(part)])
        _run(["git", "-C", str(part), "checkout", "--quiet", commit, "--", *source.paths])
        for name in source.built:
            _make(part / name)
        part.rename(folder)


def _make(folder: Path) -> None:
    """Build a folder's extension for the Python that runs this."""
    includes = f"-I{sysconfig.get_path('include')}"
    spec = find_spec("pybind11")
    if spec is not None and spec.origin is not None:
        includes += f" -I{Path(spec.origin).parent / 'include'}"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    _run(["make", "--quiet", "-C", str(folder), f"CPPFLAGS={includes}", f"LIBEXT={suffix}"])


def _run(words: list[str]) -> None:
    done = subprocess.run(words, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def _clone_of(source: Source, clones: Path) -> Path:
    names = (f"{source.owner}+{source.name}/repo", f"{source.owner}+{source.name}", source.name)
    clone = next((clones / name for name in names if (clones / name).is_dir()), None)
    if clone is None:
        raise SystemExit(f"{clones} has no clone of {source.owner}/{source.name}: {source.name}")
    return clone


def main() -> int:
    """Fetch all sources; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from", dest="clones", type=Path)
    asked = parser.parse_args()
    for source in SOURCES:
        fetch(source, asked.folder, asked.clones)
    return 0


if __name__ == "__main__":
    sys.exit(main())
