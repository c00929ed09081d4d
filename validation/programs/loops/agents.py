"""A kernel that an agent wrote for kernelbench.com, as the source times it.

L2 is flushed before each trial, and the host waits for that: its launches count.

arguments: the clone, the folder of its problems, the problem, the solution's file below the clone,
and the number of the shape.

Source: Infatoshi/kernelbench.com, benchmarks/hard/src/eval/timing.py and each problem's
benchmark.py.
"""

import sys
from contextlib import suppress
from pathlib import Path
from statistics import median
from types import ModuleType

import torch

from validation.programs.loops.timing import say
from validation.programs.loops.tritonbench import imported

WARM_UPS = 10
TRIALS = 3
"""How many of the source's trials are run: nothing here differs between trials."""
_FLUSHED = (32, 1024, 1024)
"""Floats, more than any L2 holds."""
_NAMES = {"seq_len": "SEQ_LEN", "page_size": "PAGE_SIZE", "head_dim": "HEAD_DIM"}
_NAMES |= {"num_heads": "NUM_HEADS", "num_kv_heads": "NUM_KV_HEADS"}


def sized(reference: ModuleType, shape: dict[str, int]) -> None:
    """Set the sizes of a problem, by the names that it has for them."""
    for name, size in shape.items():
        upper = _NAMES.get(name, name.upper())
        setattr(reference, name if hasattr(reference, name) else upper, size)


def main() -> None:
    """Time trials."""
    clone, problems, problem, solution, index = Path(sys.argv[1]), *sys.argv[2:]
    folder = clone / "benchmarks/hard" / problems / problem
    reference = imported("reference", folder / "reference.py")
    sized(reference, imported("shapes", folder / "shapes.py").SHAPES[int(index)])
    sizes = reference.get_init_inputs()
    with torch.no_grad():
        with torch.device("cuda"):
            inputs = reference.get_inputs()
            state = reference.Model(*sizes).state_dict()
        model = imported("solution", clone / solution).Model(*sizes).cuda().eval()
        # A solution may keep its weights otherwise; the source lets it.
        with suppress(RuntimeError):
            model.load_state_dict(state, strict=True)
        for _ in range(WARM_UPS):
            model(*inputs)
        took_ms = []
        flushed = torch.empty(_FLUSHED, dtype=torch.float32, device="cuda")
        for _ in range(TRIALS):
            flushed.zero_()
            torch.cuda.synchronize()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            model(*inputs)
            end.record()
            torch.cuda.synchronize()
            took_ms.append(begin.elapsed_time(end))
    say(median(took_ms) / 1e3)


if __name__ == "__main__":
    main()
