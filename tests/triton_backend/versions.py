"""Run the plug-in's tests on every supported minor version of Triton, each in its own environment.

    python tests/triton_backend/versions.py [--envs DIR] [3.8 3.7 ...]

Environments are kept in DIR (default ``.triton-envs``) and made only once. The exit status is that
of the first version that fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

SUPPORTED = ("3.9", "3.8", "3.7", "3.6")
ROOT = Path(__file__).parents[2]
TESTS = ("tests/triton_backend", "tests/kernel_ir", "tests/ops")
"""The plug-in, the parser of what it emits, and kernels that run from end to end."""


def requirements(minor: str) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = project["project"]["dependencies"] + project["dependency-groups"]["test"]
    others = [each for each in named if not each.startswith("triton")]
    return [*others, "hatchling", "editables", f"triton=={minor}.*"]


def make_environment(home: Path, minor: str) -> Path:
    """Return the Python of an environment with that Triton and kernbench in editable mode."""
    python = home / f"triton-{minor}" / "bin" / "python"
    installed = home / f"triton-{minor}" / "installed"
    if not installed.exists():
        venv.create(home / f"triton-{minor}", with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *requirements(minor)], check=True)
        editable = ["--no-build-isolation", "--no-deps", "--editable", str(ROOT)]
        subprocess.run([*pip, *editable], check=True)
        installed.touch()
    return python


def run_tests(python: Path, home: Path, minor: str) -> int:
    """Run the tests with a disk cache of their own; return pytest's exit status."""
    print(f"== Triton {minor}", flush=True)
    present = [each for each in TESTS if (ROOT / each).exists()]
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *present],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "TRITON_CACHE_DIR": str(home / f"cache-{minor}")},
        check=False,
    )
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("minors", nargs="*", default=SUPPORTED, metavar="MINOR")
    parser.add_argument("--envs", type=Path, default=ROOT / ".triton-envs")
    options = parser.parse_args()
    home = options.envs.resolve()
    home.mkdir(parents=True, exist_ok=True)
    statuses = {
        minor: run_tests(make_environment(home, minor), home, minor) for minor in options.minors
    }
    for minor, status in statuses.items():
        print(f"Triton {minor}: {'passed' if status == 0 else f'FAILED ({status})'}")
    return next((status for status in statuses.values() if status), 0)


if __name__ == "__main__":
    sys.exit(main())
