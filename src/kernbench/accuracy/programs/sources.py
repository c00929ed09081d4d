"""Repositories that have the programs of rows, at the commits that are run.

    python -m kernbench.accuracy.programs.sources FOLDER [--from CLONES]

clones each into FOLDER, one folder per commit; with ``--from`` out of a folder that has clones of
them (``OWNER+NAME`` or ``NAME``), without a network.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A repository, and the commits that programs are run at."""

    owner: str
    name: str
    commits: tuple[str, ...]

    @property
    def url(self) -> str:
        return f"https://github.com/{self.owner}/{self.name}"


SOURCES = (
    Source(
        owner="karpathy",
        name="build-nanogpt",
        commits=("5265b20", "177e4cd", "fb8bd6e", "7ee630c", "7230096", "3a148e4"),
    ),
    Source(owner="karpathy", name="nanoGPT", commits=("5a725d90",)),
    Source(owner="pytorch-labs", name="gpt-fast", commits=("32971d3",)),
)


def folder_of(programs: Path, name: str, commit: str) -> Path:
    """Return where ``make programs`` puts a commit of a repository."""
    return programs / f"{name}-{commit}"


def fetch(source: Source, programs: Path, clones: Path | None = None) -> None:
    """Check out the commits of a repository, cloned or out of a folder of clones.

    Raises:
        SystemExit: Git fails; it has said why.
    """
    origin = source.url if clones is None else str(_clone_of(source, clones))
    for commit in source.commits:
        folder = folder_of(programs, source.name, commit)
        if folder.exists():
            continue
        for words in (
            ["clone", "--quiet", "--no-checkout", origin, str(folder)],
            ["-C", str(folder), "checkout", "--quiet", commit],
        ):
            done = subprocess.run(["git", *words], check=False)
            if done.returncode:
                raise SystemExit(done.returncode)


def _clone_of(source: Source, clones: Path) -> Path:
    names = (f"{source.owner}+{source.name}/repo", f"{source.owner}+{source.name}", source.name)
    found = next((clones / each for each in names if (clones / each).is_dir()), None)
    if found is None:
        raise SystemExit(f"{clones} has no clone of {source.owner}/{source.name}: {source.name}")
    return found


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
