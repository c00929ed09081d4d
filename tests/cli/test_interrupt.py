from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = """
def run(torch):
    torch.multiprocessing.spawn(worker, args=(torch,), nprocs=torch.world_size)

def worker(rank, torch):
    print("ready", flush=True)
    while True:
        torch.ones(4)
        torch.ahbm.synchronize()
"""


@pytest.mark.slow
@pytest.mark.adr("0011-D3")
def test_ctrl_c_ends_a_run_with_one_line_and_status_130(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(BENCH)
    command = [sys.executable, "-m", "kernbench", "run", "endless.py", "--ranks", "2"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts its background jobs with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert err == "interrupted\n"
