"""Run the tests of a library's seam on every supported minor release, each in its own environment.

    python tests/releases.py [--envs DIR] triton|torch [3.8 3.7 ...]

Environments are kept in DIR (default ``.environments``) and made only once. The exit status is that
of the first release that fails.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Library:
    """Something that kernbench reaches into, so that each of its releases may differ."""

    minors: tuple[str, ...]
    tests: tuple[str, ...]
    brings: tuple[str, ...] = ()
    """What an installation of it brings along, of the releases that it wants."""


LIBRARIES = {
    # The plug-in, the parser of what it emits, and kernels that run from end to end.
    "triton": Library(
        ("3.9", "3.8", "3.7", "3.6"), ("tests/triton_backend", "tests/kernel_ir", "tests/ops")
    ),
    "torch": Library(("2.15", "2.14", "2.13", "2.12"), ("tests/torch_bridge",), ("triton",)),
}


def requirements(name: str, minor: str) -> list[str]:
    """Return what to install: kernbench's own, but for the library at that release."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = project["project"]["dependencies"] + project["dependency-groups"]["test"]
    left_out = {name, *LIBRARIES[name].brings}
    others = [item for item in named if re.split(r"[^\w-]", item)[0] not in left_out]
    builds = [*project["build-system"]["requires"], "editables", "setuptools>=77"]
    return [*others, *builds, f"{name}=={minor}.*"]


def make_environment(home: Path, name: str, minor: str) -> Path:
    """Return the Python of an environment with that release and kernbench in editable mode."""
    folder = home / f"{name}-{minor}"
    python, installed = folder / "bin" / "python", folder / "installed"
    if not installed.exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *requirements(name, minor)], check=True)
        for root in (ROOT, ROOT / "validation"):
            editable = ["--no-build-isolation", "--no-deps", "--editable", str(root)]
            subprocess.run([*pip, *editable], check=True)
        installed.touch()
    return python


def run_tests(python: Path, home: Path, name: str, minor: str) -> int:
    """Run the tests with a disk cache of their own; return pytest's exit status."""
    print(f"== {name} {minor}", flush=True)
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
        + [item for item in LIBRARIES[name].tests if (ROOT / item).exists()],
        cwd=ROOT,
        env={
            "PATH": "/usr/bin:/bin",
            "TRITON_CACHE_DIR": str(home / f"cache-{name}-{minor}"),
            "OMP_NUM_THREADS": "1",
        },
        check=False,
    )
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("minors", nargs="*", metavar="MINOR")
    parser.add_argument("--envs", type=Path, default=ROOT / ".environments")
    options = parser.parse_args()
    name, home = options.library, options.envs.resolve()
    home.mkdir(parents=True, exist_ok=True)
    statuses = {
        minor: run_tests(make_environment(home, name, minor), home, name, minor)
        for minor in options.minors or LIBRARIES[name].minors
    }
    for minor, status in statuses.items():
        print(f"{name} {minor}: {'passed' if status == 0 else f'FAILED ({status})'}")
    return next((status for status in statuses.values() if status), 0)


if __name__ == "__main__":
    sys.exit(main())
