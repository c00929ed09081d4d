"""Every tile of the autotuner's list gives the product that numpy gives."""

import numpy as np
import pytest

from kernbench.errors import UsageError
from kernbench.ops.products.gemm_tiles import GemmTile, matmul_tiled
from kernbench.runtime_api import RuntimeContext
from tests.ops.arrays import assert_close, values
from tests.tiers import daily

TILES = [
    GemmTile(32, 32, 32),
    GemmTile(32, 32, 32, split_k=3),
    GemmTile(64, 64, 32, block_n2=32, num_stages=4),
    GemmTile(32, 32, 32, block_n2=32),
    GemmTile(32, 64, 32, block_n2=16, split_k=2, group=1),
]


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("shape", [(1, 5, 7), (64, 96, 128), (70, 130, 200)], ids=str)
def test_a_tiled_product_is_the_product(tile: GemmTile, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
    with RuntimeContext("ahbm", ranks=1) as torch:
        out = matmul_tiled(torch.from_numpy(a), torch.from_numpy(b), tile).numpy()
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(out - exact).max() <= 2e-3 * max(1.0, np.abs(exact).max())


def test_matrices_that_do_not_fit_are_refused() -> None:
    with RuntimeContext("ahbm", ranks=1) as torch:
        a, b = torch.zeros(4, 5), torch.zeros(4, 5)
        with pytest.raises(UsageError, match="inner sizes and dtypes match"):
            matmul_tiled(a, b, TILES[0])


VECTOR_TILES = [
    GemmTile(1, 8, 64),
    GemmTile(1, 32, 16, num_stages=2),
    GemmTile(1, 16, 32, split_k=3),
]


@pytest.mark.parametrize("tile", VECTOR_TILES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(
    "shape", daily((3, 33, 64), of=((1, 5, 7), (1, 70, 200), (3, 33, 64))), ids=str
)
def test_a_vector_tile_gives_the_product(
    tile: GemmTile, dtype: str, shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    a, b = values((m, k), dtype), values((n, k), dtype, 1)
    with RuntimeContext("ahbm", ranks=1) as torch:
        out = matmul_tiled(torch.from_numpy(a), torch.from_numpy(b).T, tile)
        exact = a.astype(np.float64) @ b.astype(np.float64).T
        assert_close(out, exact.astype(a.dtype), dtype)


def test_results_of_more_than_2_31_elements_are_multiplied() -> None:
    rows, columns = 1 << 17, (1 << 14) + 128
    with RuntimeContext("h100-sxm", ranks=1, data=False) as torch:
        a, b = (torch.empty(shape, dtype="bf16") for shape in ((rows, 64), (64, columns)))
        out = matmul_tiled(a, b, GemmTile(128, 128, 64))
        torch.ahbm.synchronize()
        took_ps = torch.op_log.end_ps
    assert rows * columns > 1 << 31
    # The result's bytes at 3.35 TB/s are its least time.
    assert took_ps > 2 * out.numel() / 3.35
