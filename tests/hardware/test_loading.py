from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernbench.errors import KernbenchError, MachineError, UnknownNameError, UsageError
from kernbench.hardware import (
    Machine,
    changed_machine,
    known_machines,
    load_machine,
    parse_machine,
    source_of,
)
from kernbench.hardware.loading import yaml_mapping

PRESETS = Path(__file__).parents[2] / "src/kernbench/hardware/presets"


def preset(name: str = "ahbm") -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())
    data["sources"] = {}
    return data


def parsed(data: dict[str, Any], num_sips: int | None = None) -> Machine:
    return parse_machine(yaml.safe_dump(data), "mine.yaml", num_sips)


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the ahbm file with one key set (or removed, for None)."""
    data = preset()
    *groups, key = path.split(".")
    group = data
    for item in groups:
        group = group[item]
    if value is None:
        del group[key]
    else:
        group[key] = value
    return data


@pytest.mark.parametrize("name", known_machines())
def test_every_preset_loads_at_every_size(name: str) -> None:
    for size in preset(name)["sizes"]:
        assert load_machine(name, size).num_sips == size


def test_a_machine_that_is_loaded_again_is_described_by_what_was_read_before() -> None:
    assert load_machine("h100-sxm:2").spec is load_machine("h100-sxm:4").spec


def test_what_is_changed_in_a_copy_has_its_own_consequences() -> None:
    sip = load_machine("ahbm").sip
    before = sip.cube_hbm_gbps
    cube = sip.cube.model_copy(update={"hbm_bandwidth_gbps": 2 * sip.cube.hbm_bandwidth_gbps})
    assert sip.model_copy(update={"cube": cube}).cube_hbm_gbps == 2 * before


@pytest.mark.parametrize("name", ["ahbm", "h100-sxm", "gb200", "mi300x"])
def test_what_ships_is_read_in_c_as_in_python(name: str) -> None:
    text = (PRESETS / f"{name}.yaml").read_text()
    assert yaml_mapping(text, name, is_shipped=True) == yaml_mapping(text, name)
    with pytest.raises(MachineError, match=r"line 2: .*the key 'name' is given twice"):
        yaml_mapping("name: a\nname: b\n", name, is_shipped=True)


def leaves(data: dict[str, Any], prefix: str = "") -> list[str]:
    result = []
    for key, value in data.items():
        if isinstance(value, dict):
            result += leaves(value, f"{prefix}{key}.")
        elif not isinstance(value, str) and key not in ("devices", "clusters"):
            result.append(f"{prefix}{key}")
    return result


@pytest.mark.adr("0006-D3")
@pytest.mark.parametrize("name", known_machines())
def test_every_number_of_a_preset_has_a_source_or_says_assumed(name: str) -> None:
    sources = load_machine(name).spec.sources
    missing = [
        leaf
        for leaf in leaves(preset(name))
        if not any(leaf == key or leaf.startswith(f"{key}.") for key in sources)
    ]
    assert not missing
    assert all(text.strip() for text in sources.values())


@pytest.mark.parametrize(
    ("spec", "asked", "size"),
    [
        ("ahbm", 1, 1),
        ("ahbm", 3, 4),
        ("ahbm", 16, 16),
        ("ahbm", None, 16),
        ("ahbm:64", None, 64),
        ("ahbm:64", 5, 64),
        ("ahbm-mesh", 3, 4),
        ("ahbm-mesh:4x8", None, 32),
        ("ahbm-mesh:2x3", 6, 6),
        ("a100-sxm-80g", 5, 8),
    ],
)
def test_the_smallest_size_that_holds_the_ranks_is_taken(
    spec: str, asked: int | None, size: int
) -> None:
    assert load_machine(spec, asked).num_sips == size


def test_mesh_sizes_are_the_most_square() -> None:
    shapes = [load_machine("ahbm-mesh", size).shape for size in (1, 2, 4, 8, 16)]
    assert shapes == [(1, 1), (1, 2), (2, 2), (2, 4), (4, 4)]


@pytest.mark.parametrize("spec", ["ahbm", "ahbm:8", "ahbm-mesh:2x4"])
def test_more_ranks_than_sips_is_refused_with_both_numbers(spec: str) -> None:
    with pytest.raises(UsageError, match=r"17 ranks .* (16|8) SIPs"):
        load_machine(spec, 17)


def test_a_machine_is_returned_as_it_is() -> None:
    machine = load_machine("ahbm", 4)
    assert load_machine(machine, 3) is machine
    with pytest.raises(UsageError, match=r"5 ranks .* 4 SIPs"):
        load_machine(machine, 5)


def test_a_file_is_a_machine(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(changed("sip.clock_ghz", 0.1)))
    assert load_machine(path, 2).sip.clock_ghz == Fraction(1, 10)
    assert load_machine(f"{path}:32").num_sips == 32


@pytest.mark.parametrize(
    ("spec", "error", "says"),
    [
        ("ahmb", UnknownNameError, "did you mean ahbm"),
        ("nosuch.yaml", MachineError, "nosuch.yaml"),
        ("ahbm:lots", UsageError, "'lots'"),
        ("ahbm:0", UsageError, "at least 1"),
        ("ahbm:99999999999999999999", UsageError, "more than 1,048,576 SIPs"),
        ("ahbm:2x2", MachineError, "links.topology is ring"),
        ("", UnknownNameError, "known"),
    ],
)
def test_a_spec_that_names_nothing_is_refused(
    spec: str, error: type[KernbenchError], says: str
) -> None:
    with pytest.raises(error, match=says):
        load_machine(spec)


@pytest.mark.parametrize("asked", [0, -1])
def test_fewer_ranks_than_one_is_refused(asked: int) -> None:
    with pytest.raises(UsageError, match=f"but {asked}"):
        load_machine("ahbm", asked)


@pytest.mark.adr("0006-D1")
@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("sip.cube.hbm_bandwidth_gbsp", 1, r"hbm_bandwidth_gbsp: unknown key; did you mean hbm_ba"),
        ("sip.pe.gemm.native", 1, r"sip.pe.gemm.native: unknown key; did you mean native_"),
        ("sip.tcm_kb", 1, r"sip.tcm_kb: unknown key"),
        ("topology", "ring", r"topology: unknown key"),
        ("sip.cube.hbm_bandwidth_gbps", 0, r"hbm_bandwidth_gbps: must be above 0, but got 0"),
        ("sip.cube.hbm_bandwidth_gbps", "819 GB/s", r"hbm_bandwidth_gbps: must be a plain number"),
        ("sip.cube.hbm_bandwidth_gbps", True, r"hbm_bandwidth_gbps: must be a plain number"),
        ("sip.cube.hbm_bandwidth_gbps", float("nan"), r"hbm_bandwidth_gbps: must be a finite"),
        ("sip.cube.hbm_bandwidth_gbps", float("inf"), r"hbm_bandwidth_gbps: must be a finite"),
        ("sip.cube.hbm_latency_ns", -1, r"sip.cube.hbm_latency_ns: must be 0 or more, but got -1"),
        ("sip.cube.hbm_efficiency", 1.5, r"hbm_efficiency: must be above 0 and at most 1"),
        ("sip.cube.hbm_bandwidth_gbps", 1e30, r"hbm_bandwidth_gbps: must be at most 10000000"),
        ("sip.clock_ghz", 1e-30, r"sip.clock_ghz: must be at least 0.000001, but got 1e-30"),
        ("links.latency_ns", 1e30, r"links.latency_ns: must be at most 10000000, but got 1e"),
        ("sip.pe.gemm.native_m", 10**30, r"native_m: .* less than or equal to 10000000, but got"),
        ("sip.pe.dma_issue_cycles", 10**30, r"dma_issue_cycles: .* less than or equal to 1000000"),
        (
            "sip.pes_per_cube",
            20_000,
            r"num_cubes \(4\) times pes_per_cube \(20000\) .* at most 65536",
        ),
        ("sizes", [100_000], r"a machine has at most 65536 SIPs, but got 100000"),
        ("sip.pes_per_cube", 0, r"sip.pes_per_cube: .*, but got 0"),
        ("sip.pes_per_cube", 2.5, r"sip.pes_per_cube: .*, but got 2.5"),
        ("sip.pe.tcm_kib", -4, r"sip.pe.tcm_kib: .*, but got -4"),
        ("sip.clock_ghz", None, r"sip.clock_ghz: is missing"),
        ("sip.die_to_die", None, r"sip: num_cubes is 4, but nothing joins them"),
        ("links", None, r"16 SIPs are unconnected"),
        ("links.topology", "star", r"links.topology: .*'ring'.*, but got 'star'"),
        ("links.bandwidth_gbps", 0, r"links.bandwidth_gbps: must be above 0"),
        ("links.shape", [2, 2], r"links: topology ring has no shape"),
        ("sizes", [], r"sizes: "),
        ("sizes", [0], r"sizes.0: .*, but got 0"),
        ("sources", {"sip.clock": "x"}, r"sources names the key sip.clock, .*sip.clock_ghz"),
        ("sip_overrides", {16: {}}, r"sip_overrides names SIP 16, but the largest of sizes is 16"),
        ("sip_overrides", {3: {"clock": 1}}, r"sip_overrides.3.clock: unknown key.*clock_ghz"),
    ],
)
def test_a_wrong_key_or_value_is_refused_and_named(path: str, value: Any, says: str) -> None:
    with pytest.raises(MachineError, match=says) as caught:
        parsed(changed(path, value))
    assert str(caught.value).startswith("mine.yaml")


def test_every_wrong_key_is_listed() -> None:
    data = changed("sip.clock_ghz", 0)
    data["links"]["latency_ns"] = -1
    with pytest.raises(MachineError, match=r"(?s)2 keys are wrong.*clock_ghz.*latency_ns"):
        parsed(data)


def test_a_mesh_whose_shape_does_not_make_the_size_is_refused() -> None:
    data = preset("ahbm-mesh")
    data["links"]["shape"] = [2, 3]
    data["sizes"] = [8]
    with pytest.raises(MachineError, match=r"links.shape is 2x3, .* 6 SIPs, .* has 8"):
        parsed(data)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be a mapping of keys"),
        ("- 1", "must be a mapping of keys, but got list"),
        ("name: [", "line 1: not valid YAML"),
        ("? [a, b]\n: 1\n", "line 1: not valid YAML: a key must be a name"),
        ("? {a: 1}\n: 1\n", "line 1: not valid YAML: a key must be a name"),
        ("name: !!int x", "not valid YAML: a value is not what its tag says"),
        ("name: !!timestamp x", "not valid YAML: a value is not what its tag says"),
        ("name: " + 5000 * "[", "not valid YAML: nested too deeply"),
        ("name: a\nname: b\n", r"line 2: not valid YAML: the key 'name' is given twice"),
    ],
)
def test_text_that_is_no_machine_is_refused(text: str, says: str) -> None:
    with pytest.raises(MachineError, match=says):
        parse_machine(text, "mine.yaml")


@pytest.mark.adr("0006-D5")
def test_one_slow_sip_and_one_slow_link_differ_from_the_rest() -> None:
    data = preset()
    data["sip_overrides"] = {1: {"clock_ghz": 0.75, "cube": {"hbm_bandwidth_gbps": 400}}}
    data["links"]["overrides"] = [{"src_sip": 1, "dst_sip": 2, "bandwidth_gbps": 12.5}]
    machine = parsed(data, 4)
    assert machine.sip_at(1).clock_ghz == Fraction(3, 4)
    assert machine.sip_at(1).cube.hbm_bandwidth_gbps == 400
    assert machine.sip_at(1).cube.hbm_latency_ns == machine.sip_at(0).cube.hbm_latency_ns
    assert machine.sip_at(0) is machine.sip
    slow = [link.name for link in machine.links if link.bandwidth_gbps != 100]
    assert slow == ["sip1->sip2"]


def test_an_override_of_a_link_that_is_not_there_is_refused() -> None:
    data = preset()
    data["links"]["overrides"] = [{"src_sip": 0, "dst_sip": 2, "latency_ns": 1}]
    with pytest.raises(MachineError, match=r"links.overrides.0 names a link sip0->sip2"):
        parsed(data, 4)


def test_a_fully_connected_machine_has_every_pair() -> None:
    data = changed("links.topology", "fully_connected")
    machine = parsed(data, 8)
    for src in range(8):
        for dst in range(8):
            if src != dst:
                (index,) = machine.route(src, dst)
                link = machine.links[index]
                assert (link.src_sip, link.dst_sip) == (src, dst)
    data["sizes"] = [4096]
    with pytest.raises(MachineError, match="take a switch"):
        parsed(data)


@pytest.mark.adr("0006-D2")
def test_decimals_are_exact() -> None:
    machine = parsed(changed("sip.cube.hbm_bandwidth_gbps", 0.1))
    assert machine.sip.cube.hbm_bandwidth_gbps == Fraction(1, 10)
    assert machine.sip.hbm_stream_ps(4) == 10_000


def test_a_spec_survives_being_written_and_read() -> None:
    for name in known_machines():
        spec = load_machine(name).spec
        again = parse_machine(yaml.safe_dump(spec.model_dump(mode="json")), "again")
        assert again.spec == spec


def test_the_default_machine_is_balanced_and_holds_a_pipelined_gemm() -> None:
    sip = load_machine("ahbm").sip
    balance = sip.peak_flops_per_s("float16") / (sip.hbm_gbps * 10**9)
    assert 200 <= balance <= 300
    three_stages = 3 * 2 * 128 * 64 * 2 + 128 * 128 * 4
    assert three_stages < sip.tcm_bytes < 512 * 512 * 4 + 3 * 2 * 512 * 64 * 2


def test_a_dtype_without_a_gemm_rate_is_refused_with_the_key_to_add() -> None:
    sip = load_machine("a100-sxm-80g").sip
    with pytest.raises(MachineError, match=r"flops_per_clock.float8_e5m2"):
        sip.gemm_flops_per_clock("float8_e5m2")


@pytest.mark.parametrize("cap_w", [60, 59])
def test_a_power_cap_is_above_what_no_clock_changes(cap_w: int) -> None:
    with pytest.raises(MachineError, match="cap_w must be above idle_w, which no clock changes"):
        changed_machine(load_machine("a100-sxm-80g"), {"sip.power.cap_w": cap_w})


@pytest.mark.adr("0160-D1")
def test_every_preset_says_what_it_draws_and_where_that_is_from() -> None:
    for name in known_machines():
        spec = load_machine(name).spec
        power = spec.sip.power
        assert power is not None
        assert power.gemm_pj_per_flop.keys() == spec.sip.pe.gemm.flops_per_clock.keys()
        for key in ("board_w", "idle_w", "gemm_pj_per_flop", "hbm_pj_per_byte"):
            assert source_of(spec, f"sip.power.{key}")


def test_machines_with_a_power_limit_are_those_whose_devices_say_so() -> None:
    limited = {"a100-sxm-330w": 330, "h100-sxm-500w": 500}
    for name in known_machines():
        spec = load_machine(name).spec
        power = spec.sip.power
        assert (None if power is None else power.cap_w) == limited.get(name)
        assert any(f"{limited.get(name)}W" in device for device in spec.devices) is (
            name in limited
        )


def test_a_changed_machine_differs_in_the_keys_that_were_named() -> None:
    machine = load_machine("a100-sxm-80g", 8)
    changed = changed_machine(
        machine, {"sip.host_launch_us": 7, "sip.sustained": None}, num_sips=16
    )
    assert (changed.num_sips, changed.sips_per_node) == (16, 8)
    assert changed.sip.host_launch_us == 7
    assert changed.sip.sustained is None
    assert changed.sip.pe == machine.sip.pe
    with pytest.raises(MachineError, match=r"changed: sip\.foo: unknown key"):
        changed_machine(machine, {"sip.foo.bar": 1})
    with pytest.raises(MachineError, match=r"there is no key sip\.clock_ghz\.bar to change"):
        changed_machine(machine, {"sip.clock_ghz.bar": 1})
    with pytest.raises(MachineError, match=r"sip\.clock_ghz: must be above 0"):
        changed_machine(machine, {"sip.clock_ghz": 0})
