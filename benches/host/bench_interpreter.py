"""Question: how much faster is kernbench with data than Triton's interpreter?

The kernels of ``bench_kernels`` through the same host code on ``ahbm``, the launch, its modeled
time and its data, against the same source under ``TRITON_INTERPRET=1``, which needs torch. Both
in CPU seconds; kernbench is warm, the interpreter compiles nothing. Where torch is in another
environment than kernbench, ``TORCH_PYTHON`` names the Python of that one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
import tutorial_calls as calls

import kernbench
from conftest import Goal

TORCH_PYTHON = os.environ.get("TORCH_PYTHON", sys.executable)

CASES = {
    "GEMM f16 1024^3": ("product", "float16", ((1024, 1024), (1024, 1024)), 50),
    "vector add 1M f32": ("add", "float32", ((1 << 20,), (1 << 20,)), 50),
    "softmax 4096 x 1024 f32": ("softmax", "float32", ((4096, 1024),), 50),
    "attention f16 Z=4 H=2 N=512 D=64": ("attend", "float16", ((4, 2, 512, 64),) * 3, 10),
    "layer norm backward f16 1024 x 1024": (
        "norm_backward", "float16", ((1024, 1024), (1024, 1024), (1024,), (1024,), (1024,)), 1,
    ),
}  # fmt: skip

INTERPRETED = f"""
import json, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch
torch.set_num_threads(1)
import tutorial_calls
name, dtype, shapes = json.loads(sys.argv[1])
torch.manual_seed(0)
args = [torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes]
start = time.process_time()
out = getattr(tutorial_calls, name)(torch, *args)
seconds = time.process_time() - start
first = out[0] if isinstance(out, tuple) else out
print(json.dumps({{"seconds": seconds, "finite": bool(first.isfinite().all())}}))
"""


def kernbench_seconds(name: str, dtype: str, shapes: tuple[tuple[int, ...], ...]) -> float:
    """Return the best of several warm calls, each with its data computed."""
    rng = np.random.default_rng(0)
    result = []
    with kernbench.RuntimeContext(machine="ahbm", ranks=1, data=True) as torch:
        args = [torch.from_numpy(rng.standard_normal(shape).astype(dtype)) for shape in shapes]
        for _ in range(6):
            start = process_time()
            out: Any = getattr(calls, name)(torch, *args)
            torch.ahbm.synchronize()
            torch.run.replay_queue.drain()
            result.append(process_time() - start)
            del out
    # The first one compiles.
    return min(result[1:])


@pytest.mark.parametrize("what", CASES)
def test_interpreter_against_kernbench(what: str, goal: Goal) -> None:
    if subprocess.run([TORCH_PYTHON, "-c", "import torch"], capture_output=True).returncode:
        pytest.skip(f"Triton's interpreter needs torch, which {TORCH_PYTHON} does not have")
    *case, at_least = CASES[what]
    done = subprocess.run(
        [TORCH_PYTHON, "-c", INTERPRETED, json.dumps(case)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    interpreted = json.loads(done.stdout)
    assert interpreted["finite"]
    name, dtype, shapes = case
    ours = kernbench_seconds(name, dtype, shapes)
    print(f"\n  interpreter {interpreted['seconds']:.2f} s, kernbench {ours * 1e3:.1f} ms")
    ratio = interpreted["seconds"] / ours
    goal(f"{what} in Triton's interpreter, against kernbench", ratio, at_least, "x", at_least=True)
