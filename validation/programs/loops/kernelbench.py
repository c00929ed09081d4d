"""A problem of KernelBench as its own script times it: an event before and after each trial.

arguments: ``torch``, or the backend and the mode of ``torch.compile`` (``inductor_max-autotune``);
the problem's file; ``cold`` where L2 is flushed before each trial.

Source: ScalingIntelligence/KernelBench, scripts/generate_baseline_time.py and its timing code,
which flushes since December 2025.
"""

import sys
from pathlib import Path
from typing import Any

import torch

from validation.programs.loops.timing import say

WARM_UPS = 3
TRIALS = 3
"""How many of the source's hundred trials are run: nothing here differs between trials."""
_FLUSHED = (32, 1024, 1024)
"""Integers of 8 bytes, more than any L2 holds."""


def compiled(model: torch.nn.Module, config: str) -> Any:
    """Return a model as a configuration runs it."""
    if config == "torch":
        return model
    backend, _, mode = config.partition("_")
    return torch.compile(model, backend=backend, mode=mode or None)


def main() -> None:
    """Time trials."""
    config, path, cold = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "cold"
    problem: dict[str, Any] = {"__name__": path.stem}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), problem)
    with torch.no_grad():
        with torch.device("cuda"):
            model = problem["Model"](*problem["get_init_inputs"]())
            inputs = problem["get_inputs"]()
        model = compiled(model, config).cuda()
        inputs = [each.cuda() if isinstance(each, torch.Tensor) else each for each in inputs]
        for _ in range(WARM_UPS):
            model(*inputs)
            torch.cuda.synchronize()
        took_ms = 0.0
        for _ in range(TRIALS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if cold:
                torch.empty(_FLUSHED, dtype=torch.int64, device="cuda").fill_(42)
            begin.record()
            model(*inputs)
            end.record()
            torch.cuda.synchronize()
            took_ms += begin.elapsed_time(end)
    say(took_ms / TRIALS / 1e3)


if __name__ == "__main__":
    main()
