"""The host of a rank runs ahead of its device until it asks for something."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402


@pytest.mark.adr("0060-D3")
def test_small_operations_start_when_their_launches_reach_the_device() -> None:
    context = simulated("host_clock.py")
    launch_ps = context.machine.sip.host_launch_ps
    starts = [instance.starts_ps[0] for instance in context.op_log.instances]
    durations = [instance.template.duration_ps for instance in context.op_log.instances]
    assert len(starts) == 10
    expected, free_ps = [], 0
    for index, duration_ps in enumerate(durations):
        expected.append(max((index + 1) * launch_ps, free_ps))
        free_ps = expected[-1] + duration_ps
    assert starts == expected
    assert not [span for span in context.op_log.host_spans if span.kind == "wait"]


@pytest.mark.adr("0060-D3")
def test_reading_a_value_waits_for_the_device() -> None:
    context = simulated("host_clock.py", "read")
    (wait,) = [span for span in context.op_log.host_spans if span.kind == "wait"]
    copy = context.op_log.instances[-1]
    assert copy.template.name == "copy_to_host"
    assert wait.end_ps == copy.ends_ps[0]


@pytest.mark.adr("0225-D1")
@pytest.mark.parametrize("memory", ["plain", "pinned"])
@pytest.mark.parametrize("kind", ["to", "cuda", "copy", "assigned", "tensor"])
def test_a_copy_from_the_host_waits_for_its_stream(kind: str, memory: str) -> None:
    context = simulated("host_copies.py", kind, memory)
    (wait,) = [span for span in context.op_log.host_spans if span.kind == "wait"]
    (copy,) = [
        instance
        for instance in context.op_log.instances
        if instance.template.name == "copy_from_host"
    ]
    assert wait.end_ps == copy.ends_ps[0]


@pytest.mark.adr("0225-D1")
@pytest.mark.parametrize("memory", ["plain", "pinned"])
@pytest.mark.parametrize("kind", ["to_on", "cuda_on", "copy_on", "filled", "of_device"])
def test_a_copy_that_need_not_block_waits_for_nothing(kind: str, memory: str) -> None:
    context = simulated("host_copies.py", kind, memory)
    assert not [span for span in context.op_log.host_spans if span.kind == "wait"]


def test_what_checks_note_of_a_view_that_goes_takes_no_time_of_the_host(tmp_path: Path) -> None:
    program = tmp_path / "views.py"
    program.write_text(
        "import time, torch\n"
        "view = torch.ones(8, device='cuda').cpu().numpy()\n"
        "begun_ns = time.perf_counter_ns()\n"
        "del view\n"
        "taken_ns = time.perf_counter_ns() - begun_ns\n"
        "assert taken_ns < 3000, taken_ns  # Calls of weakref's alone.\n"
    )
    simulated(program, machine="h100-sxm", check=True)
