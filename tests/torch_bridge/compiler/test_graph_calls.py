"""Calls of compiled graphs take the host times of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.hardware import load_machine
from tests.torch_bridge.compiler.test_compiler import run_compiled

pytest.importorskip("torch")

PRESETS = Path(load_machine.__code__.co_filename).parent / "presets"
TIMES = """
  python_call_us: 1000000
  compiled_call_us: 20000
  compiled_guard_us: 0
  compiled_record_us: 100000
  compiled_recorded_us: 0
  compiled_node_us: 50000
  compiled_wrapper_us: 3000
  compiled_output_us: 0
  compiled_empty_us: 0
  compiled_launch_us: 1000
  compiled_argument_us: 0
  compiled_replay_us: 300000
"""


@pytest.mark.slow
@pytest.mark.adr("0265-D3")
def test_a_graph_has_a_time_of_its_own_and_so_has_each_launch_in_it(tmp_path: Path) -> None:
    preset = (PRESETS / "a100-sxm-80g.yaml").read_text()
    machine = tmp_path / "slow.yaml"
    machine.write_text(preset.replace("\n  slowdown: 1\n", f"\n  slowdown: 1{TIMES}"))
    done = run_compiled(tmp_path, "inductor_host.py", "--no-data", machine=str(machine))
    assert done.returncode == 0, done.stderr
