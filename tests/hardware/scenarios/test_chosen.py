"""Which devices and links a scenario is about, and what is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kernbench.errors import MachineError
from kernbench.hardware import Machine, load_machine, set_keys
from kernbench.hardware.scenarios.chosen import slow_sips
from kernbench.hardware.scenarios.specs import ScenarioSpec, SlowDevicesSpec


def changed(name: str, *settings: str) -> Machine:
    return set_keys(load_machine(name), settings)[0]


@pytest.mark.adr("0176-D3")
def test_a_slow_device_has_a_share_of_the_clock_and_others_have_all_of_it() -> None:
    machine = changed(
        "h100-sxm:8", "scenario.slow_devices.sips=[5]", "scenario.slow_devices.hbm=0.5"
    )
    usual, slow = machine.sip_at(0), machine.sip_at(5)
    assert slow.peak_flops_per_s("bfloat16") == usual.peak_flops_per_s("bfloat16") * Fraction(4, 5)
    assert slow.hbm_gbps == usual.hbm_gbps / 2
    assert [index for index in range(8) if machine.sip_at(index) is not machine.sip] == [5]


@pytest.mark.adr("0176-D2")
def test_the_seed_decides_which_devices_are_slow() -> None:
    def chosen(seed: int, count: int = 3) -> tuple[int, ...]:
        scenario = ScenarioSpec(seed=seed, slow_devices=SlowDevicesSpec(count=count))
        return slow_sips(scenario, 64, "here")

    settings = ("scenario.seed=7", "scenario.slow_devices.count=3")
    assert chosen(7) == changed("h100-sxm:8x8", *settings).slow_sips
    assert chosen(7) == chosen(7)
    assert len({chosen(seed) for seed in range(20)}) > 10
    assert all(len(set(chosen(seed))) == 3 for seed in range(20))
    # Over many seeds each of 64 devices is chosen about as often as any other.
    counts = [0] * 64
    for seed in range(200):
        for sip in chosen(seed, 16):
            counts[sip] += 1
    assert min(counts) >= 25
    assert max(counts) <= 75


@pytest.mark.adr("0176-D3")
def test_a_slow_wire_is_slow_in_both_directions() -> None:
    machine = changed(
        "h100-sxm:2x8", "scenario.slow_links.count=2", "scenario.slow_links.between=nodes"
    )
    slow = [link for link in machine.links if link.bandwidth_gbps == 25]
    assert len(slow) == 4
    assert {frozenset((item.src_sip, item.dst_sip)) for item in slow} == {
        frozenset(slow_wire) for slow_wire in machine.slow_wires
    }
    assert {link.bandwidth_gbps for link in machine.with_equal_links.links} == {50, 450}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("slow_devices.count=9", "scenario.slow_devices.count is 9, but there are 8 SIPs"),
        ("slow_devices.sips=[8]", r"names SIP 8, but there are 8 \(0 to 7\)"),
        ("slow_devices.sips=[1, 1]", "names a SIP twice"),
        ("slow_devices.clock=0", "must be above 0 and at most 1"),
        ("slow_links.count=9", "count is 9, but there are 8 wires between sips"),
        ("flapping.count=1", "flapping.count is 1, but there are 0 wires between nodes"),
        ("host_jitter.per_s=40000", "would take all of the host's time"),
        ("collective_jitter.p99_over_p50=0.9", "greater than or equal to 1"),
        ("deaths=[{rank: 1}]", "scenario.deaths.0.at_s: is missing"),
        ("deaths=[{rank: -1, at_s: 1}]", "greater than or equal to 0, but got -1"),
        ("seed=-1", "scenario.seed"),
        ("sed=1", "did you mean scenario.seed"),
    ],
)
def test_impossible_scenarios_name_the_key_and_both_numbers(settings: str, says: str) -> None:
    with pytest.raises(MachineError, match=says):
        changed("h100-sxm:8", f"scenario.{settings}")


def test_devices_are_named_or_counted() -> None:
    with pytest.raises(MachineError, match="give one of them"):
        changed("h100-sxm:8", "scenario.slow_devices.count=1", "scenario.slow_devices.sips=[1]")
