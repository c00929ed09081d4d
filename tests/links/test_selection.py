"""Which algorithm and protocol a machine takes, and the equations that schedules come out at."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.errors import MachineError, UnknownNameError, UsageError
from kernbench.hardware import load_machine, parse_machine
from kernbench.links import Asked, Network, Selector
from tests.tiers import examples

KIB, MIB = 1024, 2**20


def taken_us(
    machine: str, op: str, n: int, size: int, algorithm: str = "auto", protocol: str = "auto"
) -> float:
    """Return the time of a collective of float16 on idle links."""
    network = Network(load_machine(f"{machine}:{n}"))
    asked = Asked(op, n, size // 2, 2)
    sips = tuple(range(n))
    choice = network.selector.choose(asked, sips, algorithm, protocol)
    return (
        network.run(choice.build(asked), sips, (0,) * n, choice.protocol).template.duration_ps / 1e6
    )


def first_sizes(machine: str, op: str, n: int) -> dict[str, int]:
    """Return the smallest power of two from which each choice is taken."""
    selector = Selector(load_machine(f"{machine}:{n}"))
    sizes: dict[str, int] = {}
    for power in range(9, 30):
        choice = selector.choose(Asked(op, n, 2**power // 2, 2), tuple(range(n)))
        sizes.setdefault(f"{choice.algorithm}/{choice.protocol}", 2**power)
    return sizes


@pytest.mark.adr("0035-D3")
@pytest.mark.parametrize(
    ("machine", "op", "n", "expected"),
    [
        ("a100-sxm-80g", "all_reduce", 2, {"ring/simple": MIB}),
        ("a100-sxm-80g", "all_reduce", 4, {"ring/ll128": 2 * MIB, "ring/simple": 8 * MIB}),
        ("a100-sxm-80g", "all_reduce", 8, {"ring/ll128": 4 * MIB, "ring/simple": 32 * MIB}),
        ("a100-sxm-80g", "all_gather", 8, {"ring/ll128": 4 * MIB, "ring/simple": 16 * MIB}),
        ("h100-sxm", "all_reduce", 4, {"ring/ll128": 4 * MIB, "ring/simple": 16 * MIB}),
        ("h100-sxm", "all_reduce", 8, {"in_switch/simple": 2 * MIB}),
        ("l40s", "all_reduce", 8, {"ring/simple": MIB}),
    ],
)
def test_nccls_table_has_the_crossovers_that_are_seen_on_devices(
    machine: str, op: str, n: int, expected: dict[str, int]
) -> None:
    assert first_sizes(machine, op, n) == {"ring/ll": 512, **expected}


@pytest.mark.adr("0035-D1")
@settings(deadline=None)
@given(
    op=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
    n=st.sampled_from([2, 4, 8]),
    power=st.integers(9, 29),
)
def test_a_ring_comes_out_at_the_equations_of_each_protocol(op: str, n: int, power: int) -> None:
    """A100: T = t + steps a + ramp + (steps + tail) chunk / B, in microseconds and bytes."""
    size = 2**power
    steps = (n - 1) * (2 if op == "all_reduce" else 1)
    chunk = size / n
    x = (chunk / 4096) ** 2
    fill = 0.24 * min(chunk, 48 * MIB)
    expected = {
        "ll": 7.73 + 0.99 * steps + (2.13 + 0.33 * n) * x / (1 + x) + (steps + 1) * chunk / 140e3,
        "ll128": 15.7 + 1.44 * steps + (steps + 1) * chunk / 177e3,
        "simple": 22.2 + 6.26 * steps + ((steps + 0.41) * chunk + fill) / 236.6e3,
    }
    for protocol, time_us in expected.items():
        assert taken_us("a100-sxm-80g", op, n, size, "ring", protocol) == pytest.approx(
            time_us, rel=0.01
        )


@pytest.mark.adr("0035-D4")
@pytest.mark.parametrize("n", [5, 6, 8])
@pytest.mark.parametrize("size", [2 * MIB, 64 * MIB, 8 * 2**30])
def test_a_switch_that_adds_moves_the_message_once(n: int, size: int) -> None:
    """T = t + S (n + 1) / n / B, and what the first and last slice cannot overlap."""
    expected = 25 + size * (n + 1) / n / (0.6822 * 450e3)
    assert expected <= taken_us("h100-sxm", "all_reduce", n, size, "in_switch") <= 1.2 * expected


@pytest.mark.adr("0035-D3")
@examples(25)
@given(
    machine=st.sampled_from(["ahbm", "ahbm-mesh", "mi300x"]),
    op=st.sampled_from(["all_reduce", "all_gather", "broadcast", "all_to_all", "gather"]),
    size=st.sampled_from([64, 4096, MIB, 16 * MIB]),
)
def test_without_a_vendors_table_the_fastest_time_is_taken(
    machine: str, op: str, size: int
) -> None:
    selector = Selector(load_machine(f"{machine}:8"))
    asked, sips = Asked(op, 8, size // 2, 2), tuple(range(8))
    choice = selector.choose(asked, sips)
    times = [item.time_ps for item in selector.table(asked, sips) if item.time_ps is not None]
    assert choice.chosen_by == "modeled time"
    assert choice.time_ps == min(times)


@pytest.mark.adr("0035-D5")
def test_what_cannot_serve_says_why() -> None:
    selector = Selector(load_machine("l40s:8"))
    sips = tuple(range(8))
    table = {
        (item.algorithm, item.protocol): item.why_not
        for item in selector.table(Asked("all_to_all", 8, MIB, 2), sips)
    }
    assert table["pairwise", "ll"] == "serves parts of at most 32 KiB, not 262144 bytes"
    assert table["pairwise", "simple"] == ""
    with pytest.raises(
        UsageError, match="all_to_all of 2097152 bytes on 8 ranks of l40s: pairwise"
    ):
        selector.choose(Asked("all_to_all", 8, MIB, 2), sips, "pairwise", "ll")
    with pytest.raises(UsageError, match="takes a power of two ranks, but the group has 6"):
        selector.choose(Asked("all_gather", 6, 600, 2), sips[:6], "halving_doubling")
    with pytest.raises(UnknownNameError, match="unknown protocol 'll128' of l40s"):
        selector.choose(Asked("all_reduce", 8, 600, 2), sips, "ring", "ll128")
    with pytest.raises(UnknownNameError, match="unknown protocol 'fast' of l40s"):
        selector.choose(Asked("all_reduce", 8, 600, 2), sips, "ring", "fast")


@pytest.mark.adr("0034-D3")
def test_a_domain_bounds_the_links_of_ranks_that_span_it() -> None:
    """On L40S two ranks of a switch, four of a socket, and two of different sockets."""
    network = Network(load_machine("l40s:8"))
    asked = Asked("send_recv", 2, 50 * MIB, 2)

    def gbps(sips: tuple[int, int]) -> float:
        choice = network.selector.choose(asked, sips)
        placed = Network(network.machine).run(choice.build(asked), sips, (0, 0), choice.protocol)
        return 100 * MIB * 1e3 / placed.template.duration_ps

    assert gbps((0, 1)) == pytest.approx(0.93 * 19.4, rel=0.01)
    assert gbps((1, 2)) == pytest.approx(0.93 * 5.16, rel=0.01)
    assert gbps((0, 4)) == pytest.approx(0.93 * 1.26, rel=0.01)


SCALE_OUT = """
links:
  topology: switch
  bandwidth_gbps: 300
  latency_ns: 150
  scale_out: {sips_per_node: 8, topology: switch, bandwidth_gbps: 12.5, latency_ns: 2500}
"""


@pytest.mark.adr("0034-D2")
def test_across_slow_links_a_hierarchy_beats_a_ring() -> None:
    """In a ring the whole message leaves every node; here eight ranks take an eighth each."""
    base = load_machine("ahbm").spec.model_dump(mode="json")
    text = parse_yaml(base)
    machine = parse_machine(text, "test", 32)
    selector, sips = Selector(machine), tuple(range(32))
    asked = Asked("all_reduce", 32, 16 * MIB, 2)
    times = {item.algorithm: item.time_ps for item in selector.table(asked, sips) if item.time_ps}
    assert times["hierarchical"] * 2 < times["ring"]
    assert selector.choose(asked, sips).algorithm == "hierarchical"
    uneven = selector.table(Asked("all_reduce", 12, MIB, 2), (*range(8), *range(8, 12)))
    assert {item.algorithm: item.why_not for item in uneven}["hierarchical"]


def parse_yaml(data: dict[str, object]) -> str:
    import yaml

    data.pop("links")
    return yaml.safe_dump({**data, "sizes": [32], "sources": {}}) + SCALE_OUT


@pytest.mark.adr("0035-D4")
def test_in_switch_needs_a_switch() -> None:
    import yaml

    data = load_machine("ahbm").spec.model_dump(mode="json")
    library = {"protocols": {"simple": {}}, "in_switch": {"launch_us": 25}}
    text = yaml.safe_dump({**data, "sources": {}, "collectives": library})
    with pytest.raises(
        MachineError, match=r"needs a switch that reduces, but links\.topology is ring"
    ):
        parse_machine(text, "test")


def test_a_thousand_ranks_are_timed_in_seconds() -> None:
    network = Network(load_machine("ahbm:1024"))
    asked = Asked("all_reduce", 1024, 2**24, 2)
    sips = tuple(range(1024))
    since = time.perf_counter()
    choice = network.selector.choose(asked, sips, "ring")
    network.run(choice.build(asked), sips, (0,) * 1024, choice.protocol)
    assert time.perf_counter() - since < 5
