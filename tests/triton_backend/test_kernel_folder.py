"""Modules and traces beside Triton's own artefacts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl

from kernbench.errors import NeedsDataError
from kernbench.kernel_ir import Module, footprints
from kernbench.triton_backend import KernelBinary, binary
from kernbench.triton_backend.kernel_folder import KernelFolder
from tests.triton_backend.recording import RecordingLauncher, Tensor


@triton.jit
def scale(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


@triton.jit
def loaded_bound(x_ptr, n):
    for i in range(tl.load(x_ptr + n)):
        tl.store(x_ptr + i, i)


def forbidden(*_: Any, **__: Any) -> Any:
    raise AssertionError("compiled again")


class Process:
    """Compiles as a process of its own would: nothing is known but what lies on disk."""

    def __init__(self, launcher: RecordingLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
        self._launcher, self.patch = launcher, monkeypatch

    def binary(self, kernel: Any = scale, **constexprs: Any) -> KernelBinary:
        binary.build_binary.cache_clear()
        binary._MODULES.clear()
        kernel.device_caches.clear()
        kernel[(4,)](Tensor("i32"), 1000, **constexprs)
        return self._launcher.launches[-1][0]

    def compiles_nothing(self) -> None:
        self.patch.setattr(binary, "parse_module", forbidden)
        self.patch.setattr(binary, "evaluate", forbidden)

    def counts(self, name: str) -> list[int]:
        calls: list[int] = []
        real: Callable[..., Any] = getattr(binary, name)

        def counting(*args: Any, **options: Any) -> Any:
            calls.append(1)
            return real(*args, **options)

        self.patch.setattr(binary, name, counting)
        return calls


@pytest.fixture
def process(launcher: RecordingLauncher, monkeypatch: pytest.MonkeyPatch) -> Process:
    monkeypatch.delenv("TRITON_ALWAYS_COMPILE", raising=False)
    return Process(launcher, monkeypatch)


def ours(cache: Path) -> list[Path]:
    return sorted(cache.glob("*/*.kb*"))


@pytest.mark.adr("0043-D1")
def test_module_and_trace_lie_beside_triton_s_artefacts(
    process: Process, empty_cache: Path
) -> None:
    process.binary(BLOCK=256).trace((4, 1, 1), {1: 1000})
    module, trace = ours(empty_cache)
    assert module.name == "kernel.kbmodule"
    assert trace.name.startswith("scale.")
    assert (module.parent / "scale.ttir").is_file()


@pytest.mark.adr("0043-D1")
def test_the_next_process_compiles_nothing(process: Process) -> None:
    before = process.binary(BLOCK=256).trace((4, 1, 1), {1: 1000})
    process.compiles_nothing()
    after = process.binary(BLOCK=256).trace((4, 1, 1), {1: 1000})
    assert after is not before
    assert footprints(after) == footprints(before)
    with pytest.raises(AssertionError, match="compiled again"):
        process.binary(BLOCK=256).trace((5, 1, 1), {1: 1000})


def test_another_grid_or_integer_is_another_trace(process: Process) -> None:
    made = process.binary(BLOCK=256)
    for grid, n in (((4, 1, 1), 1000), ((2, 1, 1), 1000), ((4, 1, 1), 500)):
        assert process.binary(BLOCK=256).trace(grid, {1: n}).grid == grid
        # Two bytes per element and direction; the last program may be cut off.
        (touched,) = footprints(made.trace(grid, {1: n}))
        assert touched.high == 4 * min(n, 256 * grid[0])


@pytest.mark.adr("0043-D4")
@pytest.mark.parametrize("damage", [b"", b"nonsense" * 20])
def test_a_damaged_file_is_replaced_and_nobody_hears_of_it(
    process: Process, empty_cache: Path, damage: bytes
) -> None:
    process.binary(BLOCK=256).trace((4, 1, 1), {1: 1000})
    sound = {path: path.read_bytes() for path in ours(empty_cache)}
    for path in sound:
        path.write_bytes(damage or path.read_bytes()[:-1])
    process.binary(BLOCK=256).trace((4, 1, 1), {1: 1000})
    assert {path: len(path.read_bytes()) for path in sound} == {
        path: len(data) for path, data in sound.items()
    }
    process.compiles_nothing()
    process.binary(BLOCK=256).trace((4, 1, 1), {1: 1000})


@pytest.mark.adr("0043-D4")
def test_a_folder_that_cannot_be_used_is_no_error(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = process.binary(BLOCK=256)

    def refuse(key: str) -> Any:
        raise PermissionError(key)

    monkeypatch.setattr("kernbench.triton_backend.kernel_folder.get_cache_manager", refuse)
    assert made.trace((4, 1, 1), {1: 1000}).grid == (4, 1, 1)
    assert KernelFolder("00").load("kernel.kbmodule", made.ttir) is None


@pytest.mark.adr("0043-D4")
def test_a_file_of_something_else_is_not_taken_for_a_trace(process: Process) -> None:
    made = process.binary(BLOCK=256)
    process.patch.setattr(KernelFolder, "load", lambda *_: Module({}, ""))
    assert made.trace((4, 1, 1), {1: 1000}).name == "scale"


@pytest.mark.adr("0043-D5")
def test_launches_of_many_sizes_share_files(process: Process, empty_cache: Path) -> None:
    made = process.binary(BLOCK=256)
    process.patch.setattr(binary, "_MOST_TRACES", 3)
    for n in range(900, 930):
        made.trace((4, 1, 1), {1: n})
    assert len(ours(empty_cache)) == 1 + 3
    # One that was replaced is made again, and is right.
    for n in (900, 915, 929):
        (touched,) = footprints(process.binary(BLOCK=256).trace((4, 1, 1), {1: n}))
        assert touched.high == 4 * n


def test_a_kernel_that_needs_data_has_only_a_module(process: Process, empty_cache: Path) -> None:
    made = process.binary(loaded_bound)
    with pytest.raises(NeedsDataError):
        made.trace((1, 1, 1), {1: 7})
    assert [path.name for path in ours(empty_cache)] == ["kernel.kbmodule"]


def test_always_compile_means_here_as_well(process: Process) -> None:
    process.binary(BLOCK=256).trace((4, 1, 1), {1: 1000})
    process.patch.setenv("TRITON_ALWAYS_COMPILE", "1")
    calls = process.counts("evaluate")
    process.binary(BLOCK=256).trace((4, 1, 1), {1: 1000})
    assert calls == [1]
