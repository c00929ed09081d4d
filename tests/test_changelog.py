"""What lies in changelog.d becomes the changelog of a release."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.changelog import ROOT, fragments, release, section

OLD = "# Changelog\n\nNewest first.\n\n## 0.1.0 (unreleased)\n\n- All of it.\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "CHANGELOG.md").write_text(OLD)
    (tmp_path / "changelog.d").mkdir()
    return tmp_path


def test_every_file_of_a_change_says_its_kind() -> None:
    found = fragments(ROOT / "changelog.d")
    assert {path for paths in found.values() for path in paths} == set(
        (ROOT / "changelog.d").iterdir()
    )


def test_a_release_has_the_changes_above_the_older_ones_and_no_files_are_left(root: Path) -> None:
    (root / "changelog.d" / "b.fixed.md").write_text("Less\nwrong.\n")
    (root / "changelog.d" / "z.added.md").write_text("More.\n")
    release("0.2.0", root)
    new, _, old = (root / "CHANGELOG.md").read_text().partition("\n## 0.1.0")
    assert new.startswith("# Changelog\n\nNewest first.\n\n## 0.2.0 (2")
    body = "### Added\n\n- More.\n\n### Fixed\n\n- Less\n  wrong.\n"
    assert new.endswith(body)
    assert old == " (unreleased)\n\n- All of it.\n"
    assert not list((root / "changelog.d").iterdir())


def test_a_kind_without_changes_has_no_heading() -> None:
    assert section("0.2.0", {"added": [], "fixed": []}) == "## 0.2.0\n"


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("note.md", "x", "must be named <what>.<added|changed|fixed>.md"),
        ("a.removed.md", "x", "a.removed.md must be named"),
        ("a.fixed.md", " \n", "a.fixed.md is empty"),
    ],
)
def test_a_file_that_says_nothing_is_refused_and_the_changelog_stays(
    root: Path, name: str, text: str, match: str
) -> None:
    (root / "changelog.d" / name).write_text(text)
    with pytest.raises(ValueError, match=match.replace("|", r"\|")):
        release("0.2.0", root)
    assert (root / "CHANGELOG.md").read_text() == OLD
