"""What a run gains by a key is what the program itself gains on such a machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernbench import RuntimeContext
from kernbench.hardware import load_machine, set_keys
from kernbench.retiming import sensitivity
from kernbench.saved import SavedRun
from tests.cli.command_line import kernbench
from tests.retiming.retiming import run_and_keep

MACHINE = "ahbm:2"


def work(rank: int, torch: Any) -> None:
    torch.distributed.init_process_group()
    x = torch.zeros(512, 1024)
    torch.distributed.all_reduce(x @ torch.zeros(1024, 1024))


def program(torch: Any) -> None:
    torch.multiprocessing.spawn(work, (torch,), nprocs=2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    return run_and_keep(program, MACHINE, tmp_path_factory.mktemp("runs") / "run")[1]


def test_a_gain_is_that_of_the_program_on_the_changed_machine(saved: SavedRun) -> None:
    result = {item["key"]: item for item in sensitivity(saved, among="links.")["keys"]}
    result |= {item["key"]: item for item in sensitivity(saved, among="sip.host")["keys"]}
    for key in ("links.bandwidth_gbps", "links.latency_ns", "sip.host_launch_us"):
        item = result[key]
        machine = set_keys(load_machine(MACHINE), [f"{key}={item['after']}"])[0]
        with RuntimeContext(machine, check=False) as torch:
            program(torch)
        assert item["gain_ns"] == pytest.approx((saved.log.end_ps - torch.op_log.end_ps) / 1000)
        assert item["after"] == pytest.approx(1.1 * item["before"], rel=0.5)
        assert item["watts"] is not None
    gains = [result[key]["gain_ns"] for key in ("links.bandwidth_gbps", "links.latency_ns")]
    assert gains[0] > 0 > gains[1]


def test_the_command_ranks_keys_beside_what_they_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    machine, bench, run = tmp_path / "mine.yaml", tmp_path / "bench.py", tmp_path / "bench.run"
    assert kernbench("machine", "new", "mine", "-o", machine).exit_code == 0
    settings = ["area_mm2={sip.cube.hbm_bandwidth_gbps: 50}", "usd_per_device_hour=36"]
    assert kernbench("machine", "set", machine, *settings).exit_code == 0
    bench.write_text("def run(torch):\n    x = torch.zeros(1 << 22)\n    (x + x).sum().item()\n")
    done = kernbench("run", bench, "--machine", machine, "--save", run)
    assert done.exit_code == 0, done.output
    target = tmp_path / "found.json"
    words = ("--key", "sip.cube", "--json", target, "--by", "20%")
    done = kernbench("sensitivity", run, *words)
    assert done.exit_code == 0, done.output
    first = done.output.splitlines()[5].split()
    assert first[0] == "sip.cube.hbm_bandwidth_gbps"
    assert "+10" in first
    (most, *_) = json.loads(target.read_text())["keys"]
    assert most["gain_ns"] > 0
    assert most["area_mm2"] == pytest.approx(10)
    assert most["usd"] == pytest.approx(-36 / 3600 * most["gain_ns"] / 1e9)
    monkeypatch.setenv("COLUMNS", "70")
    narrow = kernbench("sensitivity", run, *words[:2])
    assert "sip.cube.hbm_bandwidth_gbps" in narrow.output
    assert "mm²" not in narrow.output
    for wrong, message in [
        (["--key", "sip.cubes"], "no number of mine begins with 'sip.cubes'"),
        (["--by", "0%"], "more than 0 %"),
        (["--by", "ten"], "--by takes a percentage such as 5%, but got 'ten'"),
        (["--range", "step"], "no range or step of this run is called 'step'"),
    ]:
        failed = kernbench("sensitivity", run, *wrong)
        assert failed.exit_code == 2
        assert message in failed.output
    assert kernbench("sensitivity", bench).exit_code == 2
