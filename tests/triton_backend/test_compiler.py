from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl
from triton import knobs
from triton.language.extra import libdevice

from kernbench.triton_backend import activate
from kernbench.triton_backend.compiler import KernbenchBackend, KernbenchOptions
from kernbench.triton_backend.driver import DEVICE_KEY
from tests.triton_backend.recording import RecordingLauncher, Tensor


@triton.jit
def row_softmax(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=float("-inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + offsets, e / tl.sum(e, axis=0), mask=offsets < n)


@triton.jit
def error_function(x_ptr):
    tl.store(x_ptr, libdevice.erf(tl.load(x_ptr)))


@triton.jit
def tiny_dot(a_ptr, c_ptr, M: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    m, k = tl.arange(0, M), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    c = tl.dot(a, tl.trans(a), input_precision=PRECISION)
    tl.store(c_ptr + m[:, None] * M + m[None, :], c.to(c_ptr.dtype.element_ty))


@triton.jit
def descriptor_copy(x_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [BLOCK, BLOCK])
    target = tl.make_tensor_descriptor(out_ptr, [M, N], [N, 1], [BLOCK, BLOCK])
    target.store([BLOCK, 0], source.load([0, BLOCK]))


def x(dtype: str = "f32") -> Tensor:
    return Tensor(dtype)


def ttir_of(kernel: Any, *args: Any, **constexprs: Any) -> str:
    compiled = kernel.warmup(*args, grid=(1,), **constexprs)
    text = compiled.asm["ttir"]
    return text.decode() if isinstance(text, bytes) else text


@pytest.mark.adr("0001-D3")
def test_compilation_ends_at_ttir_with_source_lines(launcher: RecordingLauncher) -> None:
    compiled = row_softmax.warmup(x(), x(), 100, BLOCK=128, grid=(1,))
    assert "ttgir" not in compiled.asm
    text = ttir_of(row_softmax, x(), x(), 100, BLOCK=128)
    assert "tt.func public @row_softmax" in text
    assert 'test_compiler.py":' in text
    # The inliner ran: the reductions of tl.max and tl.sum are in the kernel itself.
    assert "tt.call" not in text
    assert text.count('"tt.reduce"') == 2


@pytest.mark.adr("0001-D5")
def test_a_second_process_would_find_the_kernel_on_disk(empty_cache: Path) -> None:
    hits: list[bool] = []

    def listen(*, cache_hit: bool, **_: Any) -> None:
        hits.append(cache_hit)

    launchers = [RecordingLauncher(), RecordingLauncher()]
    with knobs.compilation.scope():
        knobs.compilation.listener = listen
        for launcher in launchers:
            # What a new process starts with: nothing in memory.
            row_softmax.device_caches.clear()
            with activate(launcher):
                row_softmax[(1,)](x(), x(), 100, BLOCK=128)
                row_softmax[(1,)](x(), x(), 101, BLOCK=128)
    assert hits == [False, True]
    [[(cold, _, _), _], [(warm, _, _), _]] = [launcher.launches for launcher in launchers]
    assert cold is warm


@pytest.mark.adr("0001-D5")
def test_kernels_are_kept_under_a_key_that_no_gpu_driver_uses(launcher: RecordingLauncher) -> None:
    touched: Any = triton.jit(row_softmax.fn)
    touched[(1,)](x(), x(), 100, BLOCK=128)
    assert list(touched.device_caches) == [DEVICE_KEY]
    assert not isinstance(DEVICE_KEY, int)


def test_libdevice_functions_come_out_as_symbols(launcher: RecordingLauncher) -> None:
    assert "__nv_erff" in ttir_of(error_function, x())


@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3"])
def test_dot_has_no_smallest_size_and_keeps_its_precision(
    launcher: RecordingLauncher, precision: str
) -> None:
    text = ttir_of(tiny_dot, x(), x(), M=2, K=4, PRECISION=precision)
    assert "tt.dot" in text
    assert ("tf32" in text.split("tt.dot")[1].splitlines()[0]) == (precision != "ieee")


def test_dot_is_exact_unless_the_kernel_asks_otherwise(launcher: RecordingLauncher) -> None:
    text = ttir_of(tiny_dot, x(), x(), M=16, K=16, PRECISION=None)
    assert "tf32" not in text


@pytest.mark.parametrize("dtype", ["fp8e4nv", "fp8e5"])
def test_fp8_operands_are_taken(launcher: RecordingLauncher, dtype: str) -> None:
    text = ttir_of(tiny_dot, x(dtype), x(), M=16, K=32, PRECISION=None)
    assert "tt.dot" in text


def test_descriptors_made_in_the_kernel_become_pointers(launcher: RecordingLauncher) -> None:
    text = ttir_of(descriptor_copy, x("f16"), x("f16"), 64, 48, BLOCK=16)
    assert "tt.make_tensor_descriptor" not in text
    assert "tt.load" in text
    assert "tt.store" in text


def test_the_key_of_the_disk_cache_names_the_backend_and_its_revision() -> None:
    from kernbench.triton_backend import compiler

    revision = compiler.PIPELINE_REVISION
    assert KernbenchBackend(compiler.TARGET).hash() == f"kernbench-{revision}-ttir"


def test_the_key_of_the_disk_cache_has_the_precision_of_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kernbench.triton_backend import compiler

    backend = KernbenchBackend(compiler.TARGET)
    hashes = {backend.hash()}
    for precision in ("ieee", "tf32x3"):
        monkeypatch.setenv("TRITON_F32_DEFAULT", precision)
        hashes.add(backend.hash())
    assert len(hashes) == 3


def test_options_with_another_value_have_another_hash() -> None:
    assert KernbenchOptions().hash() == KernbenchOptions().hash()
    assert KernbenchOptions(num_stages=2).hash() != KernbenchOptions(num_stages=4).hash()


@pytest.mark.adr("0080-D3")
def test_a_kernel_leaves_triton_s_artefacts_on_disk_and_nothing_else(
    launcher: RecordingLauncher, empty_cache: Path
) -> None:
    row_softmax.device_caches.clear()
    compiled = row_softmax[(1,)](x(), x(), 100, BLOCK=128)
    (binary, _, _) = launcher.launches[-1]
    for grid in ((1, 1, 1), (2, 1, 1)):
        assert binary.trace(grid, {2: 100}).grid == grid
    (folder,) = {path.parent for path in empty_cache.rglob("*.ttir")}
    # With the digest of ``sound_cache``, which is of Triton's artefacts.
    beside = {"__grp__row_softmax.json", "kernbench.row_softmax.json.digests"}
    assert {path.name for path in folder.iterdir()} == {*compiled.metadata_group, *beside}
