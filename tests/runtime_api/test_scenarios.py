"""Native programs on machines with noise."""

from __future__ import annotations

from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytest

from kernbench import RuntimeContext, ops
from kernbench.collectives import build
from kernbench.hardware import Machine, changed_machine, load_machine, set_keys
from kernbench.links import Asked, Network, disturb
from kernbench.op_log import OpLog
from kernbench.retiming import findings
from kernbench.saved import SavedRun, load_run
from tests.retiming.retiming import assert_same, retime, save

RANKS = 4


def products(rank: int, torch: Any) -> None:
    torch.distributed.init_process_group()
    x = torch.empty(1024, 1024)
    for _ in range(3):
        y = ops.matmul(x, x)
        torch.distributed.all_reduce(y)


def program(torch: Any) -> None:
    torch.multiprocessing.spawn(products, (torch,), nprocs=RANKS)


def changed(*settings: str, name: str = "ahbm:4") -> Machine:
    return set_keys(load_machine(name), [f"scenario.{setting}" for setting in settings])[0]


def run(machine: Machine) -> OpLog:
    with RuntimeContext(machine, RANKS, data=False, check=False) as torch:
        program(torch)
    return torch.op_log


@pytest.mark.adr("0176-D3")
def test_a_slow_device_is_the_device_that_a_machine_file_would_describe() -> None:
    slow = run(changed("slow_devices.sips=[2]", "slow_devices.hbm=0.5"))
    base = load_machine("ahbm:4")
    overrides = {
        2: {
            "clock_ghz": float(base.sip.clock_ghz) * 0.8,
            "cube": {"hbm_bandwidth_gbps": float(base.sip.cube.hbm_bandwidth_gbps) / 2},
        }
    }
    assert_same(slow, run(changed_machine(base, {"sip_overrides": overrides})))
    assert slow.end_ps > run(base).end_ps


@pytest.mark.adr("0176-D3")
def test_slow_links_do_not_change_what_a_library_chooses() -> None:
    settings = ("slow_links.count=1", "slow_links.bandwidth=0.05")
    usual, slow = Network(load_machine("ahbm:4")), Network(changed(*settings))
    asked, sips = Asked("all_reduce", 4, 1 << 22, 4), (0, 1, 2, 3)
    choice = usual.selector.choose(asked, sips)
    assert slow.selector.choose(asked, sips).algorithm == choice.algorithm
    schedule = choice.build(asked)
    ends = [
        max(item.run(schedule, sips, (0,) * 4, choice.protocol).ends_ps) for item in (usual, slow)
    ]
    # A wire of a twentieth: the ring waits for it in every step.
    assert 10 * ends[0] < ends[1] < 20 * ends[0]


@pytest.mark.adr("0176-D2")
def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    noise = ("host_jitter.per_s=20000", "collective_jitter.p99_over_p50=2", "seed={}")

    def written(seed: int) -> bytes:
        log = run(changed(*(item.format(seed) for item in noise)))
        log.write_parquet(tmp_path / "log.parquet", machine="ahbm", ranks=RANKS)
        return (tmp_path / "log.parquet").read_bytes()

    first = written(1)
    assert written(1) == first
    assert written(2) != first


@pytest.mark.adr("0176-D4")
def test_interruptions_delay_launches_and_are_in_the_log() -> None:
    log = run(changed("host_jitter.per_s=30000", "host_jitter.us=10"))
    spans = [host_span for host_span in log.host_spans if host_span.kind == "interruption"]
    assert spans
    assert {span.end_ps - span.start_ps for span in spans} >= {10 * 10**6}
    assert log.end_ps > run(load_machine("ahbm:4")).end_ps


@pytest.mark.adr("0176-D4")
def test_factors_of_collectives_have_the_median_and_the_tail_that_were_asked_for() -> None:
    network = disturb(Network(changed("collective_jitter.p99_over_p50=3")))
    usual = Network(load_machine("ahbm:4"))
    schedule = build("all_reduce", "ring", 4, 1 << 16, 4)
    sips, times = (0, 1, 2, 3), []
    for number in range(2000):
        start = number * 10**12
        placed = network.run(schedule, sips, (start,) * 4)
        times.append(max(placed.ends_ps) - start)
    assert placed.template.make_rows()["end_ps"].max() == placed.template.duration_ps
    expected = max(usual.run(schedule, sips, (0,) * 4).ends_ps)
    assert median(times) == pytest.approx(expected, rel=0.03)
    assert quantiles(times, n=100)[98] / median(times) == pytest.approx(3, rel=0.1)


@pytest.mark.adr("0176-D4")
def test_a_link_that_is_down_delays_by_as_long_as_it_is() -> None:
    name = "h100-sxm:2x8"
    settings = ("flapping.count=1", "flapping.up_s=0.0001", "flapping.down_s=1")
    network = disturb(Network(changed(*settings, name=name)))
    schedule = build("all_reduce", "ring", 16, 1 << 26, 4)
    sips = tuple(range(16))
    usual = max(Network(load_machine(name)).run(schedule, sips, (0,) * 16, "simple").ends_ps)
    ends_ps = max(network.run(schedule, sips, (0,) * 16, "simple").ends_ps)
    outages, rest = divmod(ends_ps - usual, 10**12)
    assert outages > 10
    assert rest == 0
    inside = build("all_reduce", "ring", 8, 1 << 20, 4)
    another = disturb(Network(network.machine))
    placed = another.run(inside, tuple(range(8)), (0,) * 8, "simple")
    assert max(placed.ends_ps) < 10**12


def run_and_keep(machine: Machine, path: Path) -> tuple[OpLog, SavedRun]:
    with RuntimeContext(machine, RANKS, data=False, check=False) as torch:
        torch.keep_actions()
        program(torch)
    save(torch, path)
    return torch.op_log, load_run(path)


@pytest.mark.adr("0176-D1")
def test_a_kept_run_has_its_scenario_and_findings_try_it_without(tmp_path: Path) -> None:
    machine = changed("slow_devices.sips=[1]", "host_jitter.per_s=20000")
    log, saved = run_and_keep(machine, tmp_path / "run")
    assert_same(log, run(machine))
    assert_same(retime(saved).op_log, log)
    gains = {item["what"]: item["gain_ns"] for item in findings(saved)["findings"]}
    without = run(changed("host_jitter.per_s=20000"))
    assert gains["no straggler"] == pytest.approx((log.end_ps - without.end_ps) / 1000)
    assert gains["no jitter"] > 0
    usual = run_and_keep(load_machine("ahbm:4"), tmp_path / "usual")[1]
    tried = findings(usual)["findings"]
    assert not {"no straggler", "no jitter"} & {item["what"] for item in tried}


@pytest.mark.adr("0176-D1")
def test_the_report_says_what_was_chosen() -> None:
    machine = changed(
        "slow_devices.count=1", "slow_links.count=1", "seed=3", "deaths=[{rank: 0, at_s: 9}]",
        "host_jitter.per_s=10", "collective_jitter.p99_over_p50=1.5",
    )  # fmt: skip
    with RuntimeContext(machine, RANKS, data=False, check=False) as torch:
        program(torch)
    said = "\n".join(line for ask in torch.run.remarks for line in ask())
    assert f"1 of 4 devices at 0.8x the clock by seed 3: SIP {machine.slow_sips[0]}" in said
    assert "1 wires between sips at 0.5x the bandwidth by seed 3: " in said
    assert "interrupted 10 times per second for 25 us" in said
    assert "log-normal factor by seed 3, 1.5 at the 99th percentile" in said
    assert "rank 0 was to die at 9 s, but the run ended at" in said
