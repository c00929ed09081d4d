"""Triton's own artefacts on disk: damaged ones are compiled again."""

from __future__ import annotations

from pathlib import Path

import pytest
import triton
import triton.language as tl
from triton import knobs
from triton.compiler import compiler

from kernbench.triton_backend import activate, sound_cache
from kernbench.triton_backend.sound_cache import SoundCacheManager, cache_remarks
from tests.triton_backend.recording import RecordingLauncher, Tensor


@triton.jit
def add_one(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at) + 1)


def compiled(launcher: RecordingLauncher, block: int = 64) -> tuple[str, int]:
    """Launch as a new process would; return the TTIR and how many were compiled for it."""
    numbers: list[int] = []
    real = compiler.ASTSource.make_ir

    def counting(*args: object, **options: object) -> object:
        numbers.append(1)
        return real(*args, **options)

    add_one.device_caches.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler.ASTSource, "make_ir", counting)
        add_one[(1,)](Tensor("i32"), BLOCK=block)
    return launcher.launches[-1][0].ttir, len(numbers)


@pytest.mark.adr("0110-D7")
@pytest.mark.parametrize("name", ["add_one.kernbench", "add_one.json", "__grp__add_one.json"])
@pytest.mark.parametrize("damage", ["cut", "not text", "another value", "gone"])
def test_a_damaged_artefact_is_compiled_again(
    launcher: RecordingLauncher, empty_cache: Path, name: str, damage: str
) -> None:
    ttir, count = compiled(launcher)
    assert (compiled(launcher), count) == ((ttir, 0), 1)
    (path,) = empty_cache.glob(f"*/{name}")
    data = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(data[:40])
        case "not text":
            path.write_bytes(data[:20] + b"\xb8" + data[21:])
        case "another value":
            path.write_bytes(data.replace(b"one", b"two"))
        case "gone":
            path.unlink()
    # Nobody reads the group's own bytes but for the names in it, which are as good as before.
    assert compiled(launcher) == (ttir, 1)
    assert compiled(launcher) == (ttir, 0)
    assert not cache_remarks()


@pytest.mark.adr("0110-D7")
@pytest.mark.parametrize(("what", "block"), [("a file", 128), ("not there to be made", 256)])
def test_a_cache_that_cannot_be_written_is_said_and_no_error(
    launcher: RecordingLauncher,
    what: str,
    block: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRITON_ALWAYS_COMPILE", raising=False)
    (tmp_path / "file").touch()
    cache = tmp_path / "file" if what == "a file" else Path("/proc/nowhere")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    ttir, count = compiled(launcher, block)
    assert (count, "tt.store" in ttir) == (1, True)
    (said,) = cache_remarks()
    assert said.startswith(f"Triton's cache {cache} cannot be written (No")
    assert "set TRITON_CACHE_DIR" in said


def test_a_cache_of_the_users_own_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(SoundCacheManager):
        pass

    monkeypatch.setitem(vars(knobs.cache), "manager_class", Own)
    with activate(RecordingLauncher()):
        assert knobs.cache.manager_class is Own
    assert knobs.cache.manager_class is Own
    monkeypatch.undo()
    with activate(RecordingLauncher()):
        assert knobs.cache.manager_class is SoundCacheManager
    # Other tests keep runs open.
    monkeypatch.setattr(knobs.cache, "manager_class", SoundCacheManager)
    sound_cache.remove()
    assert knobs.cache.manager_class is None
