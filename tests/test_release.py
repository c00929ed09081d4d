"""What keeps a commit from being tagged, and what the built README links to."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.docs.test_console_blocks import MAKE_DEMO
from tests.docs.test_pages import CODE
from tests.releases import LIBRARIES
from tools.release import DEMO, obstacles

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def git(root: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository whose commit is a release."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.2.0 (2026-12-24)\n\n- More.\n")
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / "README.md").write_text("One file a change.\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Release 0.2.0")
    return tmp_path


def commit(root: Path, name: str, text: str) -> None:
    (root / name).write_text(text)
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "More")


def test_a_commit_that_is_a_release_has_no_obstacle(root: Path) -> None:
    assert obstacles(root) == []


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("CHANGELOG.md", "# C\n\n## 0.1.0 (2026-11-28)\n", "begins with 0.1.0 (2026-11-28), but"),
        ("CHANGELOG.md", "# C\n\n## 0.2.0 (unreleased)\n", "begins with 0.2.0 (unreleased), but"),
        ("changelog.d/a.fixed.md", "Less wrong.\n", "1 changes that no release has, such as a.fix"),
    ],
)
def test_a_commit_that_is_none_is_told_why(root: Path, name: str, text: str, reason: str) -> None:
    commit(root, name, text)
    (result,) = obstacles(root)
    assert reason in result


def test_neither_a_changed_work_tree_nor_a_version_that_was_tagged_is_a_release(root: Path) -> None:
    (root / "more.py").write_text("x = 1\n")
    assert [obstacle.split(";")[0] for obstacle in obstacles(root)] == [
        "the work tree differs from the commit"
    ]
    (root / "more.py").unlink()
    git(root, "tag", "v0.2.0")
    assert obstacles(root) == ["there is a tag v0.2.0; raise the version in pyproject.toml"]


def test_the_demo_of_a_wheel_is_that_of_make() -> None:
    assert " ".join(["kernbench", *DEMO]) == MAKE_DEMO


def test_no_link_of_the_readme_depends_on_where_it_is_shown() -> None:
    (rule,) = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    built = re.sub(rule["pattern"], rule["replacement"], readme)
    assert CODE.findall(built) == CODE.findall(readme)
    targets = re.findall(r"\]\(([^)]*)\)", CODE.sub("", built))
    assert len(targets) > 20
    assert all(target.startswith("https://") for target in targets)
    home = PROJECT["project"]["urls"]["Homepage"]
    ours = [target for target in targets if target.startswith(home)]
    assert all((ROOT / result.split("/blob/main/")[1].split("#")[0]).exists() for result in ours)


@pytest.mark.parametrize("name", ["triton", "torch"])
def test_a_pin_is_of_the_releases_that_are_tested(name: str) -> None:
    extras = PROJECT["project"]["optional-dependencies"]["torch"]
    (pin,) = [
        item
        for item in [*PROJECT["project"]["dependencies"], *extras]
        if re.match(rf"{name}\b", item)
    ]
    newest, *_, oldest = LIBRARIES[name].minors
    major, minor = newest.split(".")
    assert pin == f"{name}>={oldest},<{major}.{int(minor) + 1}"
