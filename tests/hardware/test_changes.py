from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import MachineError
from kernbench.hardware import changed_machine, leaves, load_machine, set_keys
from tests.tiers import examples

H100, AHBM = load_machine("h100-sxm", 2), load_machine("ahbm", 2)
NUMBERS = {
    key: value
    for key, value in leaves(H100.spec.model_dump())
    if isinstance(value, int | float) and not isinstance(value, bool)
}


@examples(60)
@given(key=st.sampled_from(sorted(NUMBERS)), halves=st.integers(1, 8))
def test_a_factor_is_the_value_times_it_for_every_number_of_the_file(key: str, halves: int) -> None:
    product = Decimal(str(NUMBERS[key])) * halves / 2
    expected: Any = int(product) if product == int(product) else float(product)
    try:
        absolute = changed_machine(H100, {key: expected}).spec
    except MachineError:
        with pytest.raises(MachineError):
            set_keys(H100, [f"{key}={halves / 2}x"])
        return
    machine, (change,) = set_keys(H100, [f"{key}={halves / 2}x"])
    assert machine.spec == absolute
    assert (change.key, change.before) == (key, NUMBERS[key])


def test_values_are_as_in_a_machine_file() -> None:
    names = ["links.topology=mesh2d", "sip.cube.hbm_bandwidth_gbps=4e3", "sizes=[1, 2]"]
    machine, changes = set_keys(AHBM, names)
    assert machine.topology == "mesh2d"
    assert machine.sip.cube.hbm_bandwidth_gbps == 4000
    assert machine.spec.sizes == (1, 2)
    assert str(changes[1]) == "sip.cube.hbm_bandwidth_gbps = 4000 (was 819.2)"
    assert AHBM.topology == "ring", "the machine that was given is as before"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sip.cube.hbm_bandwith_gbps=2x", r"did you mean sip.cube.hbm_bandwidth_gbps \(3350\)"),
        ("hbm_gib=2x", r"has no key hbm_gib; did you mean sip.cube.hbm_gib \(80\)\?$"),
        ("hbm=2x", r"did you mean sip.cube.hbm_gib \(80\) or sip.cube.hbm_bandwidth_gbps"),
        ("zzz=1", "kernbench machine show prints all keys"),
        ("sip.cube=1", "is a group; set one of sip.cube.hbm_gib, sip.cube.hbm_bandwidth_gbps"),
        ("links.topology=2x", "is switch, which is no number; give a value"),
        ("sip.cache.write_back=2x", "is True, which is no number"),
        ("sip.cube.hbm_efficiency=2x", "must be above 0 and at most 1, but got 1.8"),
        ("sip.num_cubes=0.5x", "sip.num_cubes: input should be a valid integer, but got 0.5"),
        ("sip.cube.hbm_gib=[1", r"'\[1' is no value of a YAML file"),
        ("sip.cube.hbm_gib=much", "sip.cube.hbm_gib: must be a plain number"),
        ("sip.cube.hbm_gib", "must be KEY=VALUE, but got 'sip.cube.hbm_gib'"),
        ("sip.cube.hbm_gib=", "must be KEY=VALUE"),
        ("=3", "must be KEY=VALUE"),
    ],
)
def test_a_wrong_setting_says_what_was_found(text: str, words: str) -> None:
    with pytest.raises(MachineError, match=words):
        set_keys(H100, [text])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("links.scale_out=2x", "is not set; give a value"),
        ("links.scale_out.latency_ns=2", "has no key links.scale_out.latency_ns; did you mean"),
    ],
)
def test_what_the_machine_lacks_is_no_key(text: str, words: str) -> None:
    with pytest.raises(MachineError, match=words):
        set_keys(AHBM, [text])


def test_a_key_is_set_once() -> None:
    with pytest.raises(MachineError, match=r"gives sip.cube.hbm_gib twice: 90 and 2x"):
        set_keys(H100, ["sip.cube.hbm_gib=90", "sip.cube.hbm_gib=2x"])


def test_single_links_are_set_by_the_names_that_reports_have() -> None:
    machine = load_machine("ahbm", 4)
    settings = ["sip0->sip1.bandwidth_gbps=0.5x", "sip0->sip1.latency_ns=2000"]
    changed, changes = set_keys(machine, settings)
    before = {link.name: link for link in machine.links}
    for link in changed.links:
        same = before[link.name]
        if link.name == "sip0->sip1":
            assert link.bandwidth_gbps == same.bandwidth_gbps / 2
            assert link.latency_ps == 2_000_000
        else:
            assert (link.bandwidth_gbps, link.latency_ps) == (same.bandwidth_gbps, same.latency_ps)
    assert [change.before for change in changes] == [
        before["sip0->sip1"].bandwidth_gbps,
        before["sip0->sip1"].latency_ps / 1000,
    ]
    again, _ = set_keys(changed, ["sip1->sip2.bandwidth_gbps=1"])
    slow = [
        link.name for link in again.links if link.bandwidth_gbps != machine.links[0].bandwidth_gbps
    ]
    assert slow == ["sip0->sip1", "sip1->sip2"]


def test_a_port_of_a_node_is_a_link_too() -> None:
    machine = load_machine("h100-sxm:2x8")
    changed, _ = set_keys(machine, ["network->sip12.bandwidth_gbps=0.1x"])
    slow = [link.name for link, same in zip(changed.links, machine.links, strict=True)
            if link.bandwidth_gbps != same.bandwidth_gbps]  # fmt: skip
    assert slow == ["network->sip12"]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("sip0->sip9.bandwidth_gbps=1", "no link sip0->sip9; did you mean sip0->sip"),
        ("sip0->sip1.color=1", "a link has bandwidth_gbps and latency_ns"),
        ("sip0->sip1=1", "a link has bandwidth_gbps and latency_ns"),
        ("sip0->sip1.bandwidth_gbps=0", "bandwidth_gbps"),
    ],
)
def test_links_that_are_not_there_and_wrong_keys_are_named(setting: str, said: str) -> None:
    with pytest.raises(MachineError, match=said):
        set_keys(load_machine("ahbm", 4), [setting])
