"""Where does the time go in a tensor-parallel MLP, and are its numbers right?

Two linear layers with a GELU between them, split over 4 SIPs of ahbm as in Megatron: the first by
columns, the second by rows, so that one all_reduce of the result is all that crosses the links.
The GEMMs, the GELU and the bias are Triton kernels (``kernbench.ops``).

    y_TH = gelu(x_TH @ up_HF + bias_F) @ down_FH + bias_H

Shapes: T tokens, H hidden, F ffn (F / ranks on each rank).

Source: Shoeybi et al., "Megatron-LM", 2019, section 3.
"""

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from kernbench import ops, tp
from kernbench.errors import UsageError
from kernbench.runtime_api import RuntimeContext

RANKS = 4

Array = npt.NDArray[np.float32]


class Problem(NamedTuple):
    x_TH: Array
    up_HF: Array
    bias_F: Array
    down_FH: Array
    bias_H: Array


def run(
    torch: RuntimeContext,
    tokens: int = 64,
    hidden: int = 1024,
    ffn: int = 4096,
    iterations: int = 10,
    dtype: Literal["float16", "bfloat16", "float32"] = "float16",
    seed: int = 0,
) -> None:
    """Run the layers ``iterations`` times on all ranks and compare each rank with numpy."""
    if min(tokens, hidden, ffn) < 1:
        raise UsageError(
            f"tokens, hidden and ffn must be at least 1, but got {tokens}, {hidden} and {ffn}"
        )
    problem = make_problem(tokens, hidden, ffn, seed, torch.has_data)
    expected_TH = reference(problem) if torch.has_data else None
    torch.multiprocessing.spawn(
        worker, args=(torch, problem, iterations, dtype, expected_TH), nprocs=torch.world_size
    )


def worker(
    rank: int,
    torch: RuntimeContext,
    problem: Problem,
    iterations: int,
    dtype: str,
    expected_TH: Array | None,
) -> None:
    torch.ahbm.set_device(rank)
    torch.distributed.init_process_group()
    tp.initialize_model_parallel(torch.world_size)
    hidden, ffn = problem.up_HF.shape
    up = tp.ColumnParallelLinear(hidden, ffn, bias=True, dtype=dtype)
    down = tp.RowParallelLinear(ffn, hidden, bias=True, dtype=dtype)
    up.load_full(problem.up_HF, problem.bias_F)
    down.load_full(problem.down_FH, problem.bias_H)

    x_TH = torch.tensor(problem.x_TH, dtype=dtype, name="x")
    for _ in range(iterations):
        y_TH = down(ops.gelu(up(x_TH)))
    torch.ahbm.synchronize()

    if expected_TH is not None:
        # Tensors are rounded to dtype on the way; weights are scaled so that values stay near 1.
        tolerance = {"float16": 1e-2, "bfloat16": 8e-2, "float32": 1e-4}[dtype]
        torch.testing.assert_close(y_TH, expected_TH, rtol=tolerance, atol=tolerance)
        worst = float(np.abs(y_TH.numpy().astype(np.float32) - expected_TH).max())
        print(
            f"rank {rank}: {y_TH.numel()} numbers agree with numpy, largest difference {worst:.1g}"
        )


def make_problem(tokens: int, hidden: int, ffn: int, seed: int, has_data: bool = True) -> Problem:
    rng = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 1.0) -> Array:
        if not has_data:
            return np.broadcast_to(np.float32(0), shape)
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    return Problem(
        x_TH=normal(tokens, hidden),
        up_HF=normal(hidden, ffn, scale=hidden**-0.5),
        bias_F=normal(ffn, scale=0.1),
        down_FH=normal(ffn, hidden, scale=ffn**-0.5),
        bias_H=normal(hidden, scale=0.1),
    )


def reference(problem: Problem) -> Array:
    """Return the result in numpy, on one rank, in float32."""
    z_TF = problem.x_TH @ problem.up_HF + problem.bias_F
    # The tanh form of GELU, as Megatron's.
    gelu_TF = z_TF / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (z_TF + 0.044715 * z_TF**3)))
    return gelu_TF @ problem.down_FH + problem.bias_H
