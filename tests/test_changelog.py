"""What lies in changelog.d becomes, by towncrier, the changelog of a release."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OLD = "# Changelog\n\n<!-- towncrier release notes start -->\n\n## 0.1.0 (2026-11-28)\n\n- All.\n"


def towncrier(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--version", "0.2.0", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository with our configuration, our template, a release, and no changes."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(OLD)
    (tmp_path / "changelog.d").mkdir()
    shutil.copy(ROOT / "changelog.d" / "template.md.jinja", tmp_path / "changelog.d")
    return tmp_path


def test_every_file_of_a_change_says_its_kind_and_something() -> None:
    draft = towncrier(ROOT, "--draft")
    assert draft.returncode == 0, draft.stderr
    empty = [path.name for path in (ROOT / "changelog.d").iterdir() if not path.read_text().strip()]
    assert not empty, f"say in users' words what changed: {empty}"


def test_a_release_stands_above_the_older_ones_and_no_files_are_left(root: Path) -> None:
    (root / "changelog.d" / "b.fixed.md").write_text("Less\nwrong.\n")
    (root / "changelog.d" / "z-y.added.md").write_text("More.\n")
    # Without git, towncrier removes the files itself.
    assert towncrier(root, "--yes").returncode == 0
    text = (root / "CHANGELOG.md").read_text()
    head, _, release = OLD.partition("## 0.1.0")
    body = "### Added\n\n- More.\n\n### Fixed\n\n- Less\n  wrong.\n\n"
    assert re.sub(r"\d{4}-\d\d-\d\d", "DAY", text) == re.sub(
        r"\d{4}-\d\d-\d\d", "DAY", f"{head}## 0.2.0 (2026-11-29)\n\n{body}## 0.1.0{release}"
    )
    assert [path.name for path in (root / "changelog.d").iterdir()] == ["template.md.jinja"]


@pytest.mark.parametrize("name", ["note.md", "a.removed.md"])
def test_a_file_of_no_known_kind_is_refused_and_the_changelog_stays(root: Path, name: str) -> None:
    (root / "changelog.d" / name).write_text("x")
    refused = towncrier(root, "--yes")
    assert refused.returncode != 0
    assert f"Invalid news fragment name: {name}" in refused.stderr + refused.stdout
    assert (root / "CHANGELOG.md").read_text() == OLD
