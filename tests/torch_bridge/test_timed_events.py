"""Events with time stamps take time of their stream; events that only order it do not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import triton  # noqa: E402

from kernbench import RuntimeContext  # noqa: E402
from tests.torch_bridge.running import simulated  # noqa: E402


@triton.jit
def nothing():
    pass


@pytest.mark.adr("0246-D3")
@pytest.mark.parametrize("machine", ["a100-sxm-80g", "h100-sxm", "mi300x"])
def test_a_kernel_between_timed_events_starts_as_on_an_idle_device(machine: str) -> None:
    result = {}
    for kind in ("plain", "timed"):
        context = simulated("timed_events.py", kind, machine=machine, data=False)
        fills = [
            instance
            for instance in context.op_log.instances
            if instance.template.name.startswith("aten.zero_")
        ]
        # From the end of a fill to the start of the next one: what the events are around.
        result[kind] = fills[-1].starts_ps[0] - fills[-2].ends_ps[0]
    sip = context.machine.sip
    queued_ps = sip.front_end_ps - sip.queued_front_end_ps
    # Two events, and the kernel and the fill that each follow one of them.
    assert result["timed"] - result["plain"] == 2 * sip.event_ps + queued_ps


# Published: 6.7 us less 0.5 of a kernel on an A100, 4.5 to 4.7 on an H100.
@pytest.mark.adr("0246-D3")
@pytest.mark.parametrize(
    ("machine", "least", "most"), [("a100-sxm-80g", 6, 6.7), ("h100-sxm", 4.5, 4.7)]
)
def test_do_bench_of_an_empty_kernel_takes_what_devices_measure(
    machine: str, least: float, most: float
) -> None:
    with RuntimeContext(machine=machine, data=False):
        by_events = triton.testing.do_bench(lambda: nothing[(1,)]())
        in_a_graph = triton.testing.do_bench_cudagraph(lambda: nothing[(1,)]())
    assert least <= 1e3 * by_events <= most
    assert in_a_graph < by_events
