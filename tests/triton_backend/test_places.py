"""One text in several files: what is shown is the file that the running program has it from."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

import kernbench
from kernbench.errors import OutOfBoundsError
from kernbench.triton_backend import TcmExhaustedError, activate, binary
from kernbench.triton_backend.places import files_of, moved_files, with_files
from tests.programs import PROGRAMS
from tests.triton_backend.recording import RecordingLauncher, Tensor


def load(path: Path, program: str, patch: pytest.MonkeyPatch) -> Any:
    path.parent.mkdir(exist_ok=True, parents=True)
    shutil.copy(PROGRAMS / program, path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    patch.setitem(__import__("sys").modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


def kernel_in(folder: Path, patch: pytest.MonkeyPatch, name: str = "kernels") -> Any:
    load(folder / "kb_helper.py", "kb_helper.py", patch)
    return load(folder / f"{name}.py", "scale_kernel.py", patch).scale


def files_shown(kernel_binary: binary.KernelBinary) -> set[str]:
    trace = kernel_binary.trace((1, 1, 1), {1: 7})
    return {str(Path(command.line.file)) for command in trace.commands()}


def test_a_kernel_is_shown_in_the_folder_of_the_program_that_runs(
    launcher: RecordingLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path / "a", tmp_path / "b" / "c", tmp_path / "a"):
        kernel = kernel_in(folder, monkeypatch)
        kernel[(1,)](Tensor("fp32"), 7, BLOCK=8)
        result = launcher.launches[-1][0]
        assert files_shown(result) == {str(folder / "kernels.py"), str(folder / "kb_helper.py")}
        assert result.module.kernel.line.file == str(folder / "kernels.py")
    compiled = list((tmp_path / "triton").glob("*/scale.ttir"))
    assert len(compiled) == 1, "it was compiled once"


def test_a_copy_of_a_file_is_named_in_errors(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        kernel = kernel_in(tmp_path, monkeypatch, name)
        with (
            kernbench.RuntimeContext(ranks=1) as torch,
            pytest.raises(OutOfBoundsError, match=f"tt.store at {name}.py:12 writes"),
        ):
            kernel[(1,)](torch.zeros(4), 4, BLOCK=8)
        with (
            activate(RecordingLauncher(tcm_bytes=16)),
            pytest.raises(TcmExhaustedError, match=rf"(?s)tt.load 16xf32 at {name}.py:12"),
        ):
            kernel[(1,)](Tensor("fp32"), 4, BLOCK=16)


def test_files_that_hold_no_function_of_the_kernel_stay() -> None:
    text = 'loc(callsite("/old/lib.py":3:1 at "/old/k.py":900:5))'
    assert files_of(text) == {"/old/lib.py": (3, 3), "/old/k.py": (900, 900)}
    assert moved_files(files_of(text), None) == {}
    assert moved_files(files_of(text), lambda x: x) == {}
    assert with_files(text, {}) == text
    expected = 'loc(callsite("/old/lib.py":3:1 at "/new/k.py":900:5))'
    assert with_files(text, {"/old/k.py": "/new/k.py"}) == expected
