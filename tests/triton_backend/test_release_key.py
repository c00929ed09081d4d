"""What Triton finds out about its own files is found out once per installation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from triton.runtime import cache as triton_cache

from kernbench.triton_backend import activate
from kernbench.triton_backend.release_key import _compute, remembered
from tests.triton_backend.recording import RecordingLauncher


def installation(folder: Path) -> Path:
    root = folder / "installed"
    (root / "language").mkdir(parents=True)
    (root / "language" / "core.py").write_text("x = 1\n")
    return root


class Triton:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def key(self) -> str:
        self.asked += 1
        return f"3.9-{self.asked}"


def test_the_same_files_are_looked_at_once(tmp_path: Path, empty_cache: Path) -> None:
    root, own = installation(tmp_path), Triton()
    assert {remembered(root, "3.9", own.key) for _ in range(3)} == {"3.9-1"}


@pytest.mark.parametrize("changed", ["text of the same length", "time", "another file", "gone"])
def test_a_change_is_seen(tmp_path: Path, empty_cache: Path, changed: str) -> None:
    root, own = installation(tmp_path), Triton()
    remembered(root, "3.9", own.key)
    file = root / "language" / "core.py"
    if changed == "text of the same length":
        before = file.stat()
        file.write_text("x = 2\n")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif changed == "time":
        os.utime(file)
    elif changed == "another file":
        (root / "language" / "more.py").touch()
    else:
        file.unlink()
    assert remembered(root, "3.9", own.key) == "3.9-2"


@pytest.mark.parametrize("damage", ["", "4.0-1", b"\xff\xfe"])
def test_a_file_that_is_damaged_is_as_good_as_none(
    tmp_path: Path, empty_cache: Path, damage: str | bytes
) -> None:
    root, own = installation(tmp_path), Triton()
    remembered(root, "3.9", own.key)
    (kept,) = empty_cache.rglob("triton.key")
    kept.write_bytes(damage.encode() if isinstance(damage, str) else damage)
    assert remembered(root, "3.9", own.key) == "3.9-2"


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert remembered(installation(tmp_path), "3.9", Triton().key) == "3.9-1"


def test_inside_a_run_triton_has_its_own_key_from_disk() -> None:
    before = triton_cache.triton_key
    with activate(RecordingLauncher()):
        assert triton_cache.triton_key is not _compute
        assert triton_cache.triton_key() == _compute()
    assert triton_cache.triton_key is before
