"""Repositories of programs are checked out at their commits, and what they need is built."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

from validation.programs.sources import SOURCES, Source, fetch, folder_of


def committed(folder: Path, makefile: str) -> str:
    folder.mkdir()
    (folder / "Makefile").write_text(makefile)
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    result = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    )
    return result.stdout.strip()


def test_a_commit_is_checked_out_once_and_its_extension_built(tmp_path: Path) -> None:
    commit = committed(tmp_path / "tool", "default:\n\techo $(CPPFLAGS) > built$(LIBEXT)\n")
    source = Source(owner="someone", name="tool", commits=(commit,), built=(".",))
    programs = tmp_path / "programs"
    fetch(source, programs, tmp_path)
    built = folder_of(programs, "tool", commit) / f"built{sysconfig.get_config_var('EXT_SUFFIX')}"
    assert sysconfig.get_path("include") in built.read_text()
    built.unlink()
    fetch(source, programs, tmp_path)
    assert not built.exists()


def test_what_cannot_be_built_ends_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    commit = committed(tmp_path / "tool", "default:\n\tfalse\n")
    source = Source(owner="someone", name="tool", commits=(commit,), built=(".",))
    with pytest.raises(SystemExit) as end:
        fetch(source, tmp_path / "programs", tmp_path)
    assert end.value.code
    assert "Makefile" in capfd.readouterr().err
    assert not folder_of(tmp_path / "programs", "tool", commit).exists()


def test_every_source_is_pinned() -> None:
    assert all(source.commits for source in SOURCES)
