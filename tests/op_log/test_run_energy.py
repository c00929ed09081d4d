"""The energy of runs: what its parts are, and that they add up."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from kernbench import RuntimeContext, ops
from kernbench.hardware import changed_machine, load_machine
from kernbench.op_log import (
    Energy,
    Instance,
    OpLog,
    Template,
    average_watts,
    energy_of,
    power_over_time,
)


def work(rank: int, torch: Any) -> None:
    torch.distributed.init_process_group()
    x = torch.randn(512, 512, dtype="f16")
    for _ in range(1 + rank):
        x = x @ x
    ops.gelu(x)
    torch.distributed.all_reduce(x)
    torch.ahbm.synchronize()


def run_on(machine: Any, ranks: int, program: Callable[..., None]) -> RuntimeContext:
    with RuntimeContext(machine=machine, ranks=ranks, data=False) as torch:
        torch.multiprocessing.spawn(program, (torch,), nprocs=ranks)
    return torch


@cache
def example() -> RuntimeContext:
    return run_on("h100-sxm", 3, work)


@pytest.mark.adr("0160-D3")
def test_uses_and_idle_devices_are_all_of_the_energy() -> None:
    result = example().report()["energy"]
    idle_w = 75
    end_s = example().op_log.end_ps / 1e12
    assert result["idle_j"] == pytest.approx(3 * idle_w * end_s, rel=1e-9)
    uses_j = sum(item["energy_j"] for item in result["uses"])
    assert result["energy_j"] == pytest.approx(uses_j + result["idle_j"], abs=1e-11)
    assert result["energy_j"] == pytest.approx(sum(result["parts_j"].values()), abs=1e-11)
    ranks_j = sum(item["energy_j"] for item in result["per_rank"])
    assert result["energy_j"] == pytest.approx(ranks_j, abs=1e-11)
    for item in result["uses"]:
        assert item["energy_j"] == pytest.approx(sum(item["parts_j"].values()), abs=1e-11)
    # What templates say is counted once for each command, and nothing else but waiting is.
    commands = sum(
        sum(instance.template.energy_pj.values()) for instance in example().op_log.instances
    )
    waiting = next(entry for entry in result["uses"] if entry["name"] == "(in collectives)")
    assert uses_j - waiting["energy_j"] == pytest.approx(commands / 1e12, abs=1e-11)
    assert result["average_w"] == pytest.approx(result["energy_j"] / end_s / 3)


def beside(rank: int, torch: Any) -> None:
    """A product as large as a board can power, and a collective beside it."""
    torch.distributed.init_process_group()
    a = torch.empty(8192, 8192, dtype="f16")
    message = torch.empty(1 << 24, dtype="f16")
    work = torch.distributed.all_reduce(message, async_op=True)
    a @ a
    work.wait()
    torch.ahbm.synchronize()


@pytest.mark.adr("0285-D2")
@pytest.mark.parametrize("cap_w", [None, 400])
def test_a_device_holds_its_limit_for_all_that_runs_side_by_side(cap_w: int | None) -> None:
    machine = load_machine("h100-sxm", 2)
    if cap_w is not None:
        machine = changed_machine(machine, {"sip.power.cap_w": cap_w})
    limit_w = cap_w or 700  # NVIDIA's data sheet of the H100 SXM
    torch = run_on(machine, 2, beside)
    result = torch.report()["energy"]
    commands = sum(sum(instance.template.energy_pj.values()) for instance in torch.op_log.instances)
    for item in result["per_rank"]:
        assert item["peak_w"] <= limit_w * (1 + 1e-6)
        assert item["peak_w"] > 0.98 * limit_w
    assert result["held_j"] > 0
    product = next(item for item in torch.op_log.instances if "matmul" in item.template.name)
    taken_ps = product.ends_ps[0] - product.starts_ps[0]
    assert 1.0005 < taken_ps / product.template.duration_ps < 1.2
    uses_j = sum(entry["energy_j"] for entry in result["uses"])
    waiting_j = sum(entry["energy_j"] for entry in result["uses"] if entry["count"] == 0)
    assert uses_j - waiting_j == pytest.approx(commands / 1e12 - result["held_j"], abs=1e-9)
    assert result["energy_j"] == pytest.approx(sum(result["parts_j"].values()), abs=1e-11)
    power = power_over_time(torch.op_log, machine, 2)
    drawn = sum(float((watts[:-1] * np.diff(times)).sum()) for times, watts in power)
    assert drawn / 1e12 == pytest.approx(result["energy_j"], rel=1e-6)


@pytest.mark.adr("0160-D3")
def test_power_over_time_is_the_energy() -> None:
    torch = example()
    steps = power_over_time(torch.op_log, torch.machine, 3)
    result = torch.report()["energy"]
    for (times, watts), rank in zip(steps, result["per_rank"], strict=True):
        assert (times[0], times[-1]) == (0, torch.op_log.end_ps)
        joules = (np.diff(times) * watts[:-1]).sum() / 1e12
        assert joules == pytest.approx(rank["energy_j"], rel=1e-9)
        assert watts.max() == pytest.approx(rank["peak_w"])
        assert watts.min() == 75


@pytest.mark.adr("0160-D3")
def test_watts_between_two_times_add_up_to_the_energy() -> None:
    torch = example()
    end_ps = torch.op_log.end_ps
    bounds = [0, end_ps // 7, end_ps // 2, end_ps]
    joules = sum(
        (average_watts(torch.op_log, torch.machine, 3, begin, end) or 0.0) * (end - begin) / 1e12
        for begin, end in pairwise(bounds)
    )
    result = torch.report()["energy"]
    assert 3 * joules + result["idle_j"] == pytest.approx(result["energy_j"], rel=1e-9)


@pytest.mark.adr("0160-D1")
def test_a_kernel_takes_what_it_counts() -> None:
    with RuntimeContext(machine="h100-sxm", ranks=1, data=False) as torch:
        a = torch.empty((512, 512), dtype="f16")
        a @ a
        torch.ahbm.synchronize()
    (product,) = [
        instance for instance in torch.op_log.instances if instance.template.name == "matmul"
    ]
    power = torch.machine.sip.power
    assert power is not None
    energies = product.template.energy_pj
    flops_pj = 2 * 512**3 * float(power.gemm_pj_per_flop["float16"])
    assert energies[Energy.GEMM] == pytest.approx(flops_pj, abs=1)
    assert energies[Energy.HBM] == round(product.template.hbm_bytes * power.hbm_pj_per_byte)
    crossing = sum(row["bytes"] for row in torch.op_log.to_arrow().to_pylist()
                   if row["name"] == "matmul" and "dma" in row["engine"])  # fmt: skip
    assert energies[Energy.CACHE] == round(crossing * power.cache_pj_per_byte)


@pytest.mark.adr("0160-D1")
def test_collectives_take_the_bytes_of_each_link() -> None:
    def reduce(rank: int, torch: Any) -> None:
        torch.distributed.init_process_group()
        x = torch.empty(1 << 20, dtype="f16")
        torch.distributed.all_reduce(x)
        torch.ahbm.synchronize()

    torch = run_on("ahbm:4", 4, reduce)
    (result,) = [
        instance for instance in torch.op_log.instances if instance.template.kind == "collective"
    ]
    sends = [row["bytes"] for row in torch.op_log.to_arrow().to_pylist() if row["link"] >= 0]
    power = torch.machine.sip.power
    assert power is not None
    expected = sum(sends) * float(power.link_pj_per_byte)
    assert result.template.energy_pj[Energy.LINKS] == pytest.approx(expected, rel=1e-3)


@pytest.mark.adr("0160-D2")
def test_a_capped_run_is_slower_takes_less_and_never_draws_more() -> None:
    free = load_machine("h100-sxm", 1)
    capped = changed_machine(free, {"sip.power.cap_w": 250})
    generous = changed_machine(free, {"sip.power.cap_w": 2000})

    def products(rank: int, torch: Any) -> None:
        x = torch.empty((4096, 4096), dtype="f16")
        for _ in range(3):
            ops.gelu(x @ x)
        torch.ahbm.synchronize()

    runs = [run_on(machine, 1, products) for machine in (free, capped, generous)]
    ends = [torch.op_log.end_ps for torch in runs]
    energies = [torch.report()["energy"] for torch in runs]
    assert ends[1] > 1.2 * ends[0]
    assert ends[2] == ends[0]
    assert energies[2] == energies[0]
    assert energies[1]["energy_j"] < energies[0]["energy_j"]
    assert energies[1]["per_rank"][0]["peak_w"] <= 250 * 1.0001 < energies[0]["average_w"]


def test_a_machine_without_energies_has_none_in_its_report() -> None:
    machine = changed_machine(load_machine("ahbm", 1), {"sip.power": None})
    with RuntimeContext(machine=machine, ranks=1) as torch:
        torch.randn(64, 64)
        torch.ahbm.synchronize()
    assert "energy" not in torch.report()
    assert energy_of(torch.op_log, machine, 1) is None
    assert [len(times) for times, _ in power_over_time(torch.op_log, machine, 1)] == [0]


@pytest.mark.adr("0160-D4")
def test_a_run_costs_its_devices_for_its_time() -> None:
    torch = example()
    price = torch.machine.spec.usd_per_device_hour
    assert price is not None
    hours = torch.report()["time_ns"] / 3600e9
    assert torch.report()["cost_usd"] == pytest.approx(float(price) * 3 * hours)


def test_what_ranks_with_kernels_of_their_own_take_grows_with_the_kernels_alone() -> None:
    """A table of all ranks and all templates would be 32 MB for each of its columns."""
    ranks = 2000
    log = OpLog()
    for rank in range(ranks):
        template = Template(
            f"kernel {rank}", "kernel", "", 10, 0, 0, {}, 0, dict, energy_pj={Energy.MATH: 7}
        )
        log.append(Instance(template, rank + 1, (rank,), (rank,), (0,), (10,), "default"))
    machine = load_machine(f"h100-sxm:{ranks // 8}x8")
    tracemalloc.start()
    energy = energy_of(log, machine, ranks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert energy is not None
    assert energy["energy_j"] - energy["idle_j"] == pytest.approx(ranks * 7e-12)
    assert peak < 20e6
