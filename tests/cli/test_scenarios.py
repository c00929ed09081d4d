"""Commands take noise and faults from files, and say what of them is impossible."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernbench.cli.sweeps.points import Settings, SweptBench, changed
from tests.cli.command_line import kernbench

BENCH = """
RANKS = 4
def work(rank, torch):
    torch.distributed.init_process_group()
    x = torch.empty(256, 256)
    for _ in range(3):
        torch.distributed.all_reduce(x)
def run(torch):
    torch.multiprocessing.spawn(work, (torch,), nprocs=torch.world_size)
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("bench.py").write_text(BENCH)
    return "bench.py"


@pytest.mark.adr("0176-D1")
def test_a_scenario_comes_from_a_file_and_single_keys_change_it(bench: str) -> None:
    Path("noise.yaml").write_text("seed: 7\nslow_devices: {count: 1, clock: 0.5}\n")
    options = ("--no-data", "--scenario", "noise.yaml", "--json", "out.json")
    result = kernbench("run", bench, *options)
    assert result.exit_code == 0, result.output
    remarks = json.loads(Path("out.json").read_text())["remarks"]
    assert remarks == ["scenario: 1 of 4 devices at 0.5x the clock by seed 7: SIP 0"]
    result = kernbench("run", bench, *options, "--set", "scenario.slow_devices.count=2")
    assert "2 of 4 devices at 0.5x the clock by seed 7: SIP 0, " in result.output


@pytest.mark.adr("0176-D1")
def test_seeds_are_axes_of_a_sweep(bench: str) -> None:
    swept = SweptBench(bench, Settings(changes={"scenario.collective_jitter.p99_over_p50": "3"}))
    one, two = (swept.point({"scenario.seed": seed}) for seed in "12")
    assert one.key != two.key
    machine = changed(two.job["machine"], two.job["changes"], 4)
    assert machine.spec.scenario.seed == 2
    assert machine.spec.scenario.collective_jitter.p99_over_p50 == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slow_device: {count: 1}", "noise.yaml: scenario.slow_device: unknown key; did you mean"),
        (
            "slow_devices: {count: 9}",
            "noise.yaml: scenario.slow_devices.count is 9, but there are 4",
        ),
        ("scenario: {seed: 1}", "noise.yaml: has the key scenario itself"),
        ("- seed", "must be a mapping of keys, but got list; the keys are seed, slow_devices"),
        ("seed: [", "noise.yaml line 1: not valid YAML"),
        ("deaths: [{rank: 5, at_s: 0}]", "scenario.deaths names rank 5, but 4 ranks"),
    ],
)
def test_wrong_files_are_named_with_their_keys(bench: str, text: str, says: str) -> None:
    Path("noise.yaml").write_text(text)
    result = kernbench("run", bench, "--no-data", "--scenario", "noise.yaml")
    assert result.exit_code != 0
    assert says in result.output
    assert "Traceback" not in result.output


def test_a_file_that_is_not_there_is_named(bench: str) -> None:
    result = kernbench("run", bench, "--scenario", "none.yaml")
    assert result.exit_code == 2
    assert "--scenario none.yaml: cannot be read: No such file" in result.output


@pytest.mark.adr("0176-D5")
def test_a_bench_is_started_again(bench: str) -> None:
    death = ("--set", "scenario.deaths=[{rank: 1, at_s: 0.00001}]")
    result = kernbench("run", bench, "--no-data", *death, "--max-restarts", "1")
    assert result.exit_code == 0, result.output
    assert "restart 1 of 1 at 10 s, as of 1e-05 s: rank 1 died at 1e-05 s" in result.output
    result = kernbench("run", bench, "--no-data", *death)
    assert result.exit_code == 1
    assert "--max-restarts N starts all ranks again" in result.output


@pytest.mark.adr("0176-D6")
def test_folding_is_refused_where_ranks_differ(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "program.py"
    program.write_text("import torch\n")
    options = ("--nproc-per-node", "2", "--machine", "ahbm:2", "--no-data", "--fold")
    for noise in ("host_jitter.per_s=1", "slow_devices.count=1", "deaths=[{rank: 0, at_s: 1}]"):
        result = kernbench("torchrun", *options, "--set", f"scenario.{noise}", str(program))
        assert result.exit_code == 2
        assert "leave --fold or the scenario out" in result.output
