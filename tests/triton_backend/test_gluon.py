"""Gluon kernels: numbers as numpy's, and the time of what they do ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import triton

from kernbench.commands import DmaRead, Gemm, Loop
from kernbench.errors import UnsupportedOpError, UsageError
from kernbench.runtime_api import RuntimeContext
from kernbench.triton_backend import activate
from kernbench.triton_backend.launcher import build_argument_picker
from tests.triton_backend.recording import RecordingLauncher

gluon = pytest.importorskip("triton.experimental.gluon", reason="this Triton has no Gluon")
gl = pytest.importorskip("triton.experimental.gluon.language")
if not hasattr(
    pytest.importorskip("triton.experimental.gluon.language.nvidia.hopper").tma, "async_load"
):
    pytest.skip("Gluon before 3.9 has other names", allow_module_level=True)

from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # noqa: E402

from tests.triton_backend import gluon_kernels as kernels  # noqa: E402

Array = npt.NDArray[Any]
MACHINE = "h100-sxm"


def described(tensor: Any, block: list[int], dtype: Any, padding: str = "zero") -> Any:
    layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    return TensorDescriptor.from_tensor(tensor, block, layout, padding=padding)


def normal(*shape: int, dtype: type = np.float32) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def test_tensors_with_layouts_have_numpys_numbers() -> None:
    x, matrix = normal(5000), normal(100, 200)
    with RuntimeContext(MACHINE) as torch:
        out, turned = torch.zeros(5000), torch.zeros(200, 100)
        layout = gl.BlockedLayout([4], [32], [4], [0])
        kernels.scale[(triton.cdiv(5000, 1024),)](torch.from_numpy(x), out, 5000, 1024, layout)
        kernels.turn[(4, 4)](torch.from_numpy(matrix), turned, 100, 200, 32, 64)
        tuned = torch.zeros(5000)
        kernels.scale_tuned[lambda meta: (triton.cdiv(5000, meta["BLOCK"]),)](
            torch.from_numpy(x), tuned, 5000
        )
        assert np.array_equal(out.numpy(), 2 * x)
        assert np.array_equal(turned.numpy(), matrix.T)
        assert np.array_equal(tuned.numpy(), 2 * x)
        back = torch.zeros(100, 200)
        assert (
            triton.testing.do_bench(lambda: kernels.turn[(7, 2)](turned, back, 200, 100, 32, 64))
            > 0
        )


def test_a_kernel_of_gluon_runs_on_a_machine_that_is_no_gpu() -> None:
    x = normal(512)
    with RuntimeContext() as torch:
        out = torch.zeros(512)
        kernels.scale[(2,)](
            torch.from_numpy(x), out, 512, 256, gl.BlockedLayout([1], [32], [4], [0])
        )
        assert np.array_equal(out.numpy(), 2 * x)


@pytest.mark.adr("0170-D1")
def test_a_copy_is_made_before_what_is_stored_after_it() -> None:
    x, y = normal(512), normal(1, 512)[0]
    with RuntimeContext(MACHINE) as torch:
        a, b = torch.from_numpy(x.copy()), torch.from_numpy(y.copy())
        kernels.swap[(2,)](a, b, 256)
        assert np.array_equal(a.numpy(), y)
        assert np.array_equal(b.numpy(), x)


@pytest.mark.adr("0170-D2")
@pytest.mark.parametrize("buffers", [1, 2, 3])
@pytest.mark.parametrize(("rows", "cols"), [(100, 1000), (400, 120)])
def test_copies_ahead_bring_what_was_asked_for(buffers: int, rows: int, cols: int) -> None:
    a, b = normal(rows, cols), normal(rows, cols)[::-1].copy()
    grid = (triton.cdiv(rows, 32),)
    with RuntimeContext(MACHINE, check=True) as torch:
        x, y = torch.from_numpy(a), torch.from_numpy(b)
        out, by_tma = torch.zeros(rows, cols), torch.zeros(rows, cols)
        kernels.add_ahead[grid](x, y, out, rows, cols, 32, 64, buffers)
        descriptors = (described(tma, [32, 64], gl.float32) for tma in (x, y, by_tma))
        kernels.add_tma[grid](*descriptors, cols, 32, 64, buffers)
        assert np.array_equal(out.numpy(), a + b)
        assert np.array_equal(by_tma.numpy(), a + b)


PRODUCTS: list[tuple[str, Callable[..., Any], tuple[int, int], list[int], tuple[Any, ...]]] = [
    ("one buffer", kernels.multiply, (2, 2), [64, 128, 64], (False,)),
    ("turned", kernels.multiply, (2, 2), [64, 128, 64], (True,)),
    ("two buffers", kernels.multiply_ahead, (2, 2), [64, 128, 64], (2,)),
    ("four buffers", kernels.multiply_ahead, (2, 2), [64, 128, 64], (4,)),
    ("several tiles", kernels.multiply_persistent, (3, 1), [64, 128, 64], (3,)),
]


@pytest.mark.adr("0170-D2")
@pytest.mark.parametrize(("_", "kernel", "grid", "blocks", "options"), PRODUCTS)
def test_products_of_warp_groups_have_numpys_numbers(
    _: str, kernel: Any, grid: tuple[int, int], blocks: list[int], options: tuple[Any, ...]
) -> None:
    a, b = normal(72, 256, dtype=np.float16), normal(256, 136, dtype=np.float16)
    m, n, k = blocks
    turned = options == (True,)
    with RuntimeContext(MACHINE) as torch:
        factors = np.ascontiguousarray(b.T) if turned else b
        out = torch.zeros(72, 136, dtype=torch.float16)
        kernel[grid](
            described(torch.from_numpy(a), [m, k], gl.float16),
            described(torch.from_numpy(factors), [n, k] if turned else [k, n], gl.float16),
            described(out, [m, n], gl.float16),
            *options,
            num_warps=4,
        )
        wanted = a.astype(np.float32) @ b.astype(np.float32)
        np.testing.assert_allclose(out.numpy(), wanted.astype(np.float16), rtol=2e-3, atol=2e-2)


@pytest.mark.adr("0170-D2")
def test_loops_stay_rolled_and_run_ahead_as_far_as_the_kernel_does() -> None:
    result = {}
    with RuntimeContext(MACHINE, data=False) as torch:
        launcher = Traced()
        for buffers in (2, 3, 4):
            a, b, out = (torch.zeros(512, 512, dtype=torch.float16) for _ in range(3))
            blocks = ([64, 64], [64, 128], [64, 128])
            args = [
                described(item, block, gl.float16)
                for item, block in zip((a, b, out), blocks, strict=True)
            ]
            with activate(launcher):
                kernels.multiply_ahead[(8, 4)](*args, buffers, num_warps=4)
            [group] = launcher.traces[-1].groups
            loop, *after = group.body
            assert isinstance(loop, Loop)
            assert [type(item) for item in loop.body] == [DmaRead, DmaRead, Gemm]
            assert [type(item) for item in after].count(DmaRead) == 2 * (buffers - 2)
            result[buffers] = loop.trip_count, loop.num_stages
    # As many loads are issued before the loop as there are buffers, but two.
    assert result == {2: (8, 2), 3: (7, 3), 4: (6, 4)}


class Traced(RecordingLauncher):
    """Plans every launch, and keeps the plan."""

    cuda_architecture: int | None = 90

    def __init__(self) -> None:
        super().__init__()
        self.traces: list[Any] = []

    def launch(self, binary: Any, grid: Any, args: tuple[Any, ...]) -> None:
        ints = {index: arg for index, arg in enumerate(args) if isinstance(arg, int)}
        self.traces.append(binary.trace(grid, ints))


@pytest.mark.adr("0170-D3")
def test_a_pipelined_product_takes_as_long_as_measured() -> None:
    # Source: Triton's tutorial on persistent kernels in Gluon, its table for Hopper: 8192 x 8192 x
    # 16384 in tiles of 128 x 256 x 64 with 3 buffers and 8 warps reaches 673.67 TFLOP/s.
    m, n, k = 8192, 8192, 16384
    with RuntimeContext(MACHINE, data=False) as torch:
        a = described(torch.empty(m, k, dtype=torch.float16), [128, 64], gl.float16)
        b = described(torch.empty(k, n, dtype=torch.float16), [64, 256], gl.float16)
        out = described(torch.empty(m, n, dtype=torch.float16), [128, 256], gl.float16)

        def time_ms(kernel: Any, *options: Any) -> float:
            grid = (m // 128, n // 256)
            launch = lambda: kernel[grid](a, b, out, *options, num_warps=8)  # noqa: E731
            return float(triton.testing.do_bench(launch))

        ahead, waiting = time_ms(kernels.multiply_ahead, 3), time_ms(kernels.multiply, False)
    tflops = 2 * m * n * k / ahead / 1e9
    assert tflops == pytest.approx(673.67, rel=0.05)
    assert waiting > 1.1 * ahead


@pytest.mark.adr("0170-D4")
def test_what_is_not_simulated_is_refused_by_name_with_what_to_do() -> None:
    with RuntimeContext(MACHINE) as torch:
        x, y = torch.zeros(8, 64), torch.zeros(8, 64)
        counts = torch.from_numpy(np.array([1, 5], np.int32))
        with pytest.raises(
            UnsupportedOpError, match=r"warp_specialize .*side_by_side.*in one loop"
        ):
            kernels.side_by_side[(1,)](x, y)
        with pytest.raises(UnsupportedOpError, match=r"memdesc_subslice .*allocate one buffer"):
            kernels.by_rows[(1,)](x, y, 8, 64)
        out = torch.zeros(2, 128)
        kernels.until_shared[(2,)](torch.zeros(8, 128), out, counts)
        with pytest.raises(UnsupportedOpError, match=r"local_alloc .*pass what it decides by"):
            out.numpy()
        nan = described(x, [8, 64], gl.float32, padding="nan")
        with pytest.raises(UsageError, match="pads with NaN"):
            kernels.add_tma[(1,)](nan, nan, nan, 64, 8, 64, 1)
        picker = build_argument_picker({"x": "tensordesc_im2col<fp16[64, 64],layout>"}, True)
        with pytest.raises(UsageError, match=r"im2col mode.*load the pixels"):
            picker((nan,))


def test_a_loop_whose_end_is_data_runs_where_shared_memory_is_not_managed() -> None:
    x = normal(8, 128)
    with RuntimeContext(MACHINE) as torch:
        out = torch.zeros(3, 128)
        counts = torch.from_numpy(np.array([1, 5, 8], np.int32))
        kernels.until[(3,)](torch.from_numpy(x), out, counts)
        for row, count in zip(out.numpy(), (1, 5, 8), strict=True):
            np.testing.assert_allclose(row, x[:count].sum(axis=0), rtol=1e-5, atol=1e-5)


@pytest.mark.adr("0170-D4")
def test_reading_a_buffer_that_nothing_wrote_is_an_error() -> None:
    nothing = pytest.raises(UnsupportedOpError, match="nothing was written to before")
    with RuntimeContext(MACHINE) as torch, nothing:
        kernels.unwritten[(1,)](torch.zeros(128))
