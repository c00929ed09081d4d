"""Ranks that do the same are run once (ADR-0166); the oracle is the run of all of them."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.resources import files

import pytest
import yaml

pytest.importorskip("torch")

from kernbench.errors import UsageError
from kernbench.op_log import OpLog
from kernbench.runtime_api import Folding, RankAxis, RuntimeContext, SpawnException
from kernbench.torch_bridge import run_torchrun
from tests.torch_bridge.running import PROGRAMS, simulated

PROGRAM = PROGRAMS / "folded.py"


def folded(case: str, ranks: int, machine: str, axes: tuple[RankAxis, ...] = ()) -> RuntimeContext:
    context = RuntimeContext(machine=machine, ranks=ranks, data=False)
    context.run.folding = Folding(ranks, axes)
    context.op_log.running = context.run.folding.running
    code = compile(PROGRAM.read_text(), str(PROGRAM), "exec")
    with context:
        run_torchrun(context, PROGRAM, code, [str(PROGRAM), case], ranks)
    return context


def commands(log: OpLog, rank: int) -> list[tuple[str, int, int]]:
    return [
        (each.template.name, each.starts_ps[place], each.ends_ps[place])
        for each in log.instances
        for place, of in enumerate(each.ranks)
        if of == rank
    ]


@pytest.fixture(scope="module")
def without_host(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a machine whose hosts take no time for Python, which each rank needs once."""
    data = yaml.safe_load((files("kernbench.hardware") / "presets/h100-sxm.yaml").read_text())
    del data["host"]
    data["sources"] = {k: v for k, v in data["sources"].items() if not k.startswith("host")}
    path = tmp_path_factory.mktemp("machines") / "h100.yaml"
    path.write_text(yaml.safe_dump(data))
    return str(path)


@pytest.mark.slow
@pytest.mark.adr("0166-D1")
def test_stages_of_a_pipeline_take_as_long_as_in_a_run_of_all_ranks(without_host: str) -> None:
    whole = simulated("folded.py", "pipeline", nprocs=8, machine=without_host, data=False).op_log
    found = folded("pipeline", 8, without_host, (RankAxis(4, 2),)).op_log
    assert {rank for each in found.instances for rank in each.ranks} == {0, 4}
    for rank in (0, 4):
        assert commands(found, rank) == commands(whole, rank)


@pytest.mark.adr("0166-D2")
def test_ranks_that_send_to_each_other_must_both_run(without_host: str) -> None:
    with pytest.raises(SpawnException) as caught:
        folded("pipeline", 8, without_host)
    assert "rank 4, which does not run" in str(caught.value.exceptions[0])


@pytest.mark.adr("0166-D3")
def test_groups_that_share_links_count(capfd: pytest.CaptureFixture[str]) -> None:
    whole = simulated("folded.py", "replicas", nprocs=4, data=False).op_log
    capfd.readouterr()
    context = folded("replicas", 4, "ahbm:4")
    of_rank_0 = commands(context.op_log, 0)
    latest = max(commands(whole, rank)[1] for rank in range(4))
    assert of_rank_0[1][0] == latest[0] == "all_reduce"
    assert of_rank_0[1][2] == latest[2]
    assert context.run.folding is not None
    assert any(
        "all_reduce at one time share links" in each for each in context.run.folding.remarks()
    )
    # What an absent rank would have sent is what the rank that runs has.
    assert capfd.readouterr().out.strip() == str(["rank 0"] * 4)


def test_ranks_in_a_ring_of_all_are_not_folded() -> None:
    with pytest.raises(SpawnException) as caught:
        folded("to_next", 4, "ahbm:4")
    assert "pass the pipeline's own group" in str(caught.value.exceptions[0])


def test_a_group_without_whoever_runs_for_its_ranks_is_refused() -> None:
    with pytest.raises(UsageError, match="rank 0 runs for rank 1, but is not in its group"):
        Folding(4).positions((1, 2, 3), 1)


@pytest.mark.adr("0166-D4")
def test_a_report_is_of_the_ranks_that_ran() -> None:
    context = folded("replicas", 4, "ahbm:4")
    report = context.report()
    assert report["ranks"] == 4
    assert [each["rank"] for each in report["per_rank"]] == [0]
    assert {rank for each in context.op_log.instances for rank in each.ranks} == {0}
    assert context.run.folding is not None
    assert context.run.folding.remarks()[0].startswith("folded: 1 of 4 ranks ran (0)")


def on_command_line(case: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernbench", "torchrun", "--nproc-per-node", "4", *options]
    return subprocess.run(
        [*command, "--machine", "ahbm:4", str(PROGRAM), case],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.adr("0166-D5")
def test_others_are_run_to_compare_them() -> None:
    found = on_command_line("branching", "--no-data", "--fold", "--fold-check", "1")
    assert re.search(r"rank [123] does not do what rank 0 does", found.stdout)
    assert "aten.mm instead of all_reduce" in found.stdout
    found = on_command_line("pipeline", "--no-data", "--fold", "--fold-check", "1")
    assert "starts again with 2 of 4 ranks" in found.stderr
    took = r"rank 1 and rank 3 (took as long as|did) what ran for it"
    assert re.search(took, found.stdout)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--fold"], "add --no-data"),
        (["--fold-check", "1", "--no-data"], "pass --fold, too"),
    ],
)
def test_what_does_not_go_together_is_refused(options: list[str], said: str) -> None:
    found = on_command_line("replicas", *options)
    assert found.returncode == 2
    assert said in found.stderr
