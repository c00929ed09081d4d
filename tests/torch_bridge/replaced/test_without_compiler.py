"""PyTorch's compiler is imported when a program asks for something of it, and not before."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.tiers import of_campaigns
from tests.torch_bridge.running import PROGRAMS, simulated

ROOT = Path(__file__).parents[3]


@pytest.mark.campaign
@pytest.mark.parametrize("asks", [[], ["asks"]])
def test_the_compiler_comes_when_it_is_asked_for_and_is_itself_after_the_run(
    asks: list[str],
) -> None:
    command = [sys.executable, str(PROGRAMS / "compiler_after_a_run.py"), *asks]
    environ = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("collects_own")
@pytest.mark.parametrize(
    ("text", "nprocs"),
    [
        ("torch.ones(2, device='cuda') + 1", 1),
        ("import torch.distributed as dist\ndist.init_process_group()\n"
         "x = torch.ones(2, device='cuda')\ndist.all_reduce(x)\ntorch._dynamo.config", 2),
        ("torch.nn.Linear.kept = torch.ones(2, device='cuda')", 2),
        of_campaigns("torch.compile(torch.nn.GELU())(torch.ones(4, device='cuda'))", 1),
    ],
    ids=["alone", "several", "attribute", "compiled"],
)  # fmt: skip
def test_nothing_keeps_a_run_that_is_over(tmp_path: Path, text: str, nprocs: int) -> None:
    """Modules and caches of libraries would; the run that fills them first may stay."""
    program = tmp_path / "program.py"
    program.write_text(f"import torch\n{text}\n")
    runs = [weakref.ref(simulated(program, nprocs=nprocs).run) for _ in range(3)]
    # A thread of a run may end a moment after it.
    for _ in range(20):
        gc.collect()
        if not any(run() for run in runs[1:]):
            break
        time.sleep(0.05)
    assert [run() for run in runs[1:]] == [None, None]
