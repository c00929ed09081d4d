"""Build the wheel and the sdist, and check them as users install them; ``--tag`` tags the commit.

The wheel is built out of the sdist, so that this is whole; each supported Python on PATH
gets an environment with nothing but the wheel and what it requires, and runs `make demo`'s command.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
DEMO = ("run", "tp_mlp", "--trace", "out/tp_mlp.trace.json")
"""What `make demo` runs once it has installed; it compares its numbers with numpy's."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Return what a command prints; where it fails, show all of it and end.

    Raises:
        SystemExit: The command has failed.
    """
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        words = " ".join(map(str, command))
        sys.exit(f"{done.stdout}{done.stderr}\n{words}: exit status {done.returncode}")
    return done.stdout


def obstacles(root: Path) -> list[str]:
    """Return what keeps a commit from being tagged as the release that its pyproject.toml names."""
    version = project(root)["version"]
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (.*)$", changelog, re.MULTILINE)
    pending = sorted(path.name for path in (root / "changelog.d").glob("*.*.md"))
    reasons = []
    if run("git", "status", "--porcelain", cwd=root):
        reasons.append("the work tree differs from the commit; commit, or put it aside")
    if newest is None or not re.fullmatch(
        rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", newest[1]
    ):
        reasons.append(
            f"CHANGELOG.md begins with {newest[1] if newest else 'no release'}, but pyproject.toml"
            f" says {version}; make changelog VERSION={version}"
        )
    if pending:
        reasons.append(
            f"changelog.d has {len(pending)} changes that no release has, such as {pending[0]}"
        )
    if run("git", "tag", "--list", f"v{version}", cwd=root):
        reasons.append(f"there is a tag v{version}; raise the version in pyproject.toml")
    return reasons


def project(root: Path) -> dict[str, str]:
    """Return the section of pyproject.toml that has the version and the classifiers."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    section: dict[str, str] = tomllib.loads(text)["project"]
    return section


def pythons() -> dict[str, str | None]:
    """Return the interpreter of each supported version of Python; None where PATH has none."""
    versions = re.findall(r"Python :: (3\.\d+)", " ".join(project(ROOT)["classifiers"]))
    return {version: working(f"python{version}") for version in versions}


def working(name: str) -> str | None:
    """Return the path of a program that can be started: a shim may stand for nothing."""
    path = shutil.which(name)
    if path is None or subprocess.run([path, "--version"], capture_output=True).returncode:
        return None
    return path


def try_wheel(python: str, wheel: Path) -> None:
    """Install a wheel into a clean environment, and run the demo in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        run(python, "-m", "venv", home / "environment")
        programs = home / "environment" / "bin"
        run(programs / "python", "-m", "pip", "install", "--quiet", wheel)
        (home / "work").mkdir()
        run(programs / "kernbench", *DEMO, cwd=home / "work")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tag", action="store_true", help="tag the commit; without, nothing is")
    tag = parser.parse_args().tag
    reasons = obstacles(ROOT)
    if tag and reasons:
        sys.exit("\n".join(["not tagged:", *reasons]))
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST)
    run(sys.executable, "-m", "twine", "check", "--strict", *DIST.iterdir())
    (wheel,) = DIST.glob("*.whl")
    print(f"built and checked: {', '.join(sorted(path.name for path in DIST.iterdir()))}")
    installed = pythons()
    if not any(installed.values()):
        sys.exit(f"none of Python {', '.join(installed)} is on PATH to install the wheel with")
    for version, python in installed.items():
        if python is None:
            print(f"Python {version}: not on PATH, not tried")
            continue
        try_wheel(python, wheel)
        print(f"Python {version}: the wheel installs, and the demo agrees with numpy", flush=True)
    name = f"v{project(ROOT)['version']}"
    if tag:
        run("git", "tag", "--annotate", name, "--message", f"kernbench {name[1:]}")
        print(f"tagged {name}; git push origin {name} lets the workflow publish it")
    else:
        print("\n".join([f"dry: {name} is not tagged (ARGS=--tag)", *reasons]))


if __name__ == "__main__":
    main()
