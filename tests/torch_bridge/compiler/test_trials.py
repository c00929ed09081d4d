"""What a compiler tries at a kernel's first launch is in no time of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forked import PYTORCH, run_forked

pytest.importorskip("torch")

PROGRAM = """
import time
import torch
from kernbench.torch_bridge.processes.process import current

x = torch.ones(4, device="cuda", requires_grad=True)
before = time.time_ns()
host = current().host
host.owe_graph_call(3, [x])
with host.trying(lambda template: None):
    inside = time.time_ns()
    for _ in range(2):
        x.clone()
        host.owe_for("compiled_call_ps")
        inside_later = time.time_ns()
print(inside - before, inside_later - before, time.time_ns() - before)
"""


@pytest.mark.campaign
@pytest.mark.adr("0126-D2")
def test_a_clock_that_is_read_in_a_trial_pays_for_nothing(tmp_path: Path) -> None:
    """With --save a host's debt counts what it is of: in ps it would be more than any time."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    printed = []
    for options in ([], ["--save", str(tmp_path / "run")]):
        asked = ("torchrun", "--no-data", "--machine", "h100-sxm", *options, str(program))
        done = run_forked("kernbench", *asked, imports=PYTORCH)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.splitlines()[0].split())
    assert printed[0] == printed[1]
    inside, later, after = map(int, printed[0])
    assert inside < later < 1_000 < 10_000 < after < 10_000_000
