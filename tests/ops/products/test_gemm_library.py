"""Products whose tiles a library chooses: the same numbers, and the library's time."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench import ops
from kernbench.dtypes import DType, float16
from kernbench.errors import UsageError
from kernbench.hardware import SipSpec, load_machine
from kernbench.ops import GemmTile
from kernbench.plans.tiles import GemmTuner, Problem
from kernbench.runtime_api import RuntimeContext

SPLIT = GemmTile(32, 32, 32, split_k=2)
asked: list[tuple[int, int, int]] = []


def always_split(m: int, n: int, k: int, dtype: DType, sip: SipSpec) -> GemmTile:
    asked.append((m, n, k))
    return SPLIT


@pytest.mark.adr("0014-D6")
def test_a_library_picks_the_tiles_of_products_of_matrices() -> None:
    rng = np.random.default_rng(0)
    x, w, bias = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 70), (70, 40), (40,)))
    exact = x.astype(np.float64) @ w
    asked.clear()
    with RuntimeContext(ranks=1) as torch:
        a, b, c = (torch.from_numpy(item) for item in (x, w, bias))
        ops.use_tiles(always_split)
        np.testing.assert_allclose(ops.matmul(a, b).numpy(), exact, rtol=1e-4, atol=1e-4)
        transposed = ops.matmul(a, b.T.contiguous().T).numpy()
        np.testing.assert_allclose(transposed, exact, rtol=1e-4, atol=1e-4)
        rectified = ops.matmul(a, b, c, activation="relu").numpy()
        np.testing.assert_allclose(rectified, np.maximum(exact + bias, 0), rtol=1e-4, atol=1e-4)
        # A batch is no product of matrices: it keeps its kernel.
        batch = ops.matmul(a, a.transpose(1, 2)).numpy()
        np.testing.assert_allclose(batch, x @ x.swapaxes(1, 2), rtol=1e-4, atol=1e-4)
        assert asked == [(6, 40, 70)] * 3
        ops.use_tiles(None)
        ops.matmul(a, b)
        assert len(asked) == 3
        with pytest.raises(UsageError, match="takes a function or None, but got 3"):
            ops.use_tiles(3)  # type: ignore[arg-type]


@pytest.mark.adr("0014-D6")
@pytest.mark.parametrize("sizes", [(16, 4608, 6144), (300, 1024, 512), (1, 512, 2048)], ids=str)
def test_a_product_of_a_run_takes_the_time_that_its_tile_was_chosen_for(
    sizes: tuple[int, int, int],
) -> None:
    machine = load_machine("a100-sxm-80g", 1)
    best = GemmTuner().tune(Problem(*sizes, float16), machine)
    m, n, k = sizes
    assert best.tile.is_vector == (m == 1)
    with RuntimeContext(machine=machine, ranks=1, data=False) as torch:
        ops.use_tiles(lambda m, n, k, dtype, sip: best.tile)
        ops.matmul(torch.empty((m, k), dtype="float16"), torch.empty((k, n), dtype="float16"))
        torch.ahbm.synchronize()
        times = [
            instance.template.duration_ps
            for instance in torch.op_log.instances
            if instance.template.kind == "kernel"
        ]
    assert len(times) == (2 if best.tile.split_k > 1 else 1)
    assert sum(times) / 1e6 == best.kernel_us
