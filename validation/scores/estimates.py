"""What PyTorch itself estimates for a problem of KernelBench: its ``RuntimeEstimator``.

It takes an operation for the longer of its products at a peak and its bytes at the bandwidth, and
adds operations up. It asks a GPU for both rates; here a machine's stand for them.
"""

from __future__ import annotations

from contextlib import ExitStack, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kernbench.accuracy.rows import Row
from kernbench.errors import KernbenchError
from kernbench.hardware import Machine
from validation.predictors.families.public import problem_of


def estimated_us(row: Row, machine: Machine, programs: Path) -> float | None:
    """Return the estimate for an eager row of KernelBench; None where there is none."""
    if row.source != "kernelbench" or row.fields["config"] != "torch":
        return None
    try:
        path, cube = problem_of(row, programs), machine.sip.cube
        gbps = float(cube.hbm_bandwidth_gbps * machine.sip.num_cubes)
        tflops = float(machine.sip.peak_flops_per_s("float32")) / 1e12
        return _estimate_us(path, tflops, gbps) if path.is_file() else None
    except (KernbenchError, RuntimeError, TypeError, ValueError, AssertionError):
        return None


@cache
def _estimate_us(path: Path, tflops: float, gbps: float) -> float:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator
    from torch.utils import _runtime_estimation as rates

    estimator = RuntimeEstimator()
    problem: dict[str, Any] = {"__name__": path.stem}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), problem)
    with ExitStack() as stack:
        stack.enter_context(patch.object(rates, "get_device_tflops", lambda dtype: tflops))
        stack.enter_context(patch.object(rates, "get_gpu_dram_gbps", lambda: gbps))
        stack.enter_context(patch.object(torch.cuda, "is_available", lambda: True))
        # Problems of two commits draw inputs by what their tools add to torch.
        stack.enter_context(patch.object(torch, "rand_mix", torch.rand, create=True))
        for context in (redirect_stdout(StringIO()), FakeTensorMode(), torch.no_grad()):
            stack.enter_context(context)
        model = problem["Model"](*problem["get_init_inputs"]())
        inputs = problem["get_inputs"]()
        with estimator("operator-level-cost-model"):
            model(*inputs)
    return float(estimator.total_runtime) * 1e3
