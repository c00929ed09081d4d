"""Streams and events in simulated time."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_bridge.running import simulated  # noqa: E402


@pytest.mark.adr("0063-D3")
def test_reading_times_again_and_again_is_no_wait(tmp_path: Path) -> None:
    said = tmp_path / "said"
    simulated("streams.py", "many_readings", said)
    assert said.read_text() == "1 True"


def test_elapsed_time_is_the_simulated_time_between_two_points_of_a_stream(tmp_path: Path) -> None:
    said = tmp_path / "said"
    context = simulated("streams.py", "elapsed_time", said)
    adds = [
        instance for instance in context.op_log.instances if instance.template.name == "aten.add_"
    ]
    # The first event happens when its marker reaches the idle stream, before the launch of add_.
    launch_ps = context.machine.sip.host_launch_ps
    expected_ps = adds[-1].ends_ps[0] - (adds[0].starts_ps[0] - launch_ps)
    assert float(said.read_text()) == pytest.approx(expected_ps / 1e9, abs=1e-9)


@pytest.mark.adr("0063-D3")
def test_an_event_on_an_idle_stream_has_happened_when_it_is_asked_about(tmp_path: Path) -> None:
    said = tmp_path / "said"
    context = simulated("streams.py", "events_of_an_idle_stream", said)
    (ones,) = context.op_log.instances
    launch_ps = context.machine.sip.host_launch_ps
    expected_ps = ones.ends_ps[0] - (ones.starts_ps[0] - launch_ps)
    assert float(said.read_text()) == pytest.approx(expected_ps / 1e9, abs=1e-9)


@pytest.mark.adr("0063-D3")
def test_a_copy_on_a_stream_of_its_own_runs_beside_kernels() -> None:
    context = simulated("streams.py", "copy_beside_kernels")
    by_name = {instance.template.name: instance for instance in context.op_log.instances}
    copy = by_name["copy_from_host"]
    first, last = (e for e in context.op_log.instances if e.template.name == "aten.add_")
    assert first.starts_ps[0] < copy.ends_ps[0] <= last.starts_ps[0]
    assert copy.stream != first.stream == last.stream


@pytest.mark.adr("0063-D3")
def test_sleep_takes_simulated_time_and_no_real_one() -> None:
    context = simulated("streams.py", "sleep", 3600)
    assert context.op_log.instances[0].starts_ps[0] > 3600 * 10**12


@pytest.mark.adr("0063-D3")
def test_a_sleeping_kernel_takes_cycles_of_the_device_on_its_stream(tmp_path: Path) -> None:
    said = tmp_path / "said"
    context = simulated("streams.py", "sleeping_kernels", said)
    sleep = [
        instance for instance in context.op_log.instances if instance.template.name == "_sleep"
    ]
    short, long = (item.template.duration_ps for item in sleep)
    sip = context.machine.sip_at(0)
    assert long - short == sip.cycles_ps(1_500_000)
    assert float(said.read_text()) == pytest.approx((long - short) / 1e9, abs=1e-6)


@pytest.mark.adr("0063-D3")
def test_prefetched_gathers_of_fsdp_overlap_the_layers_before() -> None:
    context = simulated("streams.py", "prefetched_gathers", nprocs=2)
    gathers = [e for e in context.op_log.instances if e.template.name == "all_gather"]
    kernels = [
        e for e in context.op_log.instances if e.template.name == "aten.addmm" and e.ranks == (0,)
    ]
    overlapped = [
        gather
        for gather in gathers
        if any(
            k.starts_ps[0] < gather.ends_ps[0] and gather.starts_ps[0] < k.ends_ps[0]
            for k in kernels
        )
    ]
    assert overlapped


def test_contexts_call_what_a_program_has_put_in_the_place_of_set_stream() -> None:
    simulated("streams.py", "a_function_of_the_programs_own_sets_them")


def test_a_range_of_priorities_is_that_of_pytorch() -> None:
    simulated("streams.py", "a_range_of_priorities_is_that_of_pytorch")
