"""The page of a folded run says what a rank does, not what it would if the others idled."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernbench.cli.app import app
from kernbench.page.contents import contents
from kernbench.saved import load_run

PROGRAM = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
x = torch.ones(256, 256, device="cuda")
for _ in range(8):
    x = x @ x
dist.all_reduce(x)
torch.cuda.synchronize()
"""


def test_a_folded_run_has_the_time_and_energy_of_the_ranks_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(PROGRAM)

    def call(*options: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, list(options))
        return done.exit_code, done.output

    names = ("--machine", "h100-sxm", "--no-data", "--nproc-per-node", "4", "--save", "kept")
    assert call("torchrun", "--fold", *names, "program.py")[0] == 0
    run = load_run("kept")
    shown = contents(run)
    assert shown["times"]["ranks"] == [0]
    assert sum(map(sum, shown["times"]["by_rank"])) == run.log.end_ps
    assert shown["communication"] is None
    assert shown["energy"]["energy_j"] == run.report["energy"]["energy_j"]
    status, output = call("why", "kept", "--energy")
    assert status == 0
    assert "4 devices of h100-sxm" in output
    status, output = call("why", "kept", "--communication")
    assert status == 2
    assert "of a folded run it is not known who sends to whom" in " ".join(output.split())
