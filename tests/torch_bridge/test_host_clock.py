"""The host of a rank runs ahead of its device until it asks for something."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.runtime_api import RuntimeContext

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402

PROGRAM = """
import torch
x = torch.zeros(64, 64, device="cuda")
for _ in range(9):
    x.add_(1)
{end}
"""


def run(folder: Path, end: str) -> RuntimeContext:
    path = folder / "program.py"
    path.write_text(PROGRAM.format(end=end))
    return simulated(path)


@pytest.mark.adr("0060-D3")
def test_small_operations_start_when_their_launches_reach_the_device(tmp_path: Path) -> None:
    context = run(tmp_path, "")
    launch_ps = context.machine.sip.host_launch_ps
    starts = [each.starts_ps[0] for each in context.op_log.instances]
    durations = [each.template.duration_ps for each in context.op_log.instances]
    assert len(starts) == 10
    expected, free_ps = [], 0
    for index, duration_ps in enumerate(durations):
        expected.append(max((index + 1) * launch_ps, free_ps))
        free_ps = expected[-1] + duration_ps
    assert starts == expected
    assert not [span for span in context.op_log.host_spans if span.kind == "wait"]


@pytest.mark.adr("0060-D3")
def test_reading_a_value_waits_for_the_device(tmp_path: Path) -> None:
    context = run(tmp_path, "assert x[0, 0].item() == 9")
    (wait,) = [span for span in context.op_log.host_spans if span.kind == "wait"]
    copy = context.op_log.instances[-1]
    assert copy.template.name == "copy_to_host"
    assert wait.end_ps == copy.ends_ps[0]
