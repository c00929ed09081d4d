"""Compile one function, and say whether its graph was kept on disk; the argument scales it."""

import sys
from pathlib import Path

import torch
import torch._dynamo
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import cache_dir

factor = int(sys.argv[1])
x = torch.arange(40.0)


def was_kept():
    """Compile it, and return whether it was kept."""
    torch._dynamo.reset()
    counters.clear()
    result = torch.compile(lambda x: torch.softmax(x * factor, -1))(x.cuda())
    assert torch.allclose(result.cpu(), torch.softmax(x * factor, -1), rtol=1e-5)
    kept, missing = (counters["aot_autograd"][f"autograd_cache_{name}"] for name in ("hit", "miss"))
    assert kept + missing == 1, dict(counters["aot_autograd"])
    return bool(kept)


print("kept" if was_kept() else "made", flush=True)
if "damage" in sys.argv:
    # What a writer leaves that stops where no file system should let it stop.
    for kind in ("aotautograd", "fxgraph"):
        files = [path for path in Path(cache_dir(), kind).rglob("*") if path.is_file()]
        assert files
        for number, file in enumerate(files):
            file.write_bytes(file.read_bytes()[:20] if number % 2 else b"")
        assert not was_kept()
        assert was_kept()
