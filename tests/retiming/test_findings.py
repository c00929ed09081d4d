"""Findings: each gain is that of the program itself with that change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kernbench import RuntimeContext, ops
from kernbench.cli.app import app
from kernbench.hardware import load_machine, set_keys
from kernbench.retiming import RankedFindings, WhatIf, findings
from kernbench.saved import SavedRun
from tests.retiming.retiming import run_and_keep


def late(rank: int, torch: Any) -> None:
    """Rank 1 comes late to every collective."""
    torch.distributed.init_process_group()
    x = torch.zeros(512, 1024)
    for _ in range(4):
        for _ in range(1 + 3 * rank):
            ops.gelu(x)
        torch.distributed.all_reduce(x)


def program(torch: Any) -> None:
    torch.multiprocessing.spawn(late, (torch,), nprocs=2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    return run_and_keep(program, "ahbm:2", tmp_path_factory.mktemp("runs") / "run")[1]


@pytest.fixture(scope="module")
def found(saved: SavedRun) -> RankedFindings:
    return findings(saved)


@pytest.mark.adr("0156-D1")
def test_a_gain_is_that_of_the_program_on_the_changed_machine(
    saved: SavedRun, found: RankedFindings
) -> None:
    gains = {item["what"]: item["gain_ns"] for item in found["findings"]}
    for what, setting in (
        ("links twice as fast", "links.bandwidth_gbps=2x"),
        ("hosts take no time", "sip.host_launch_us=0"),
    ):
        machine = set_keys(load_machine("ahbm:2"), [setting])[0]
        with RuntimeContext(machine, check=False) as torch:
            program(torch)
        assert gains[what] == pytest.approx((saved.log.end_ps - torch.op_log.end_ps) / 1000)
        assert gains[what] > 0


@pytest.mark.adr("0156-D1")
def test_what_takes_no_time_takes_none(saved: SavedRun) -> None:
    """Closed form: without kernels, links and hosts nothing but waiting is left."""
    kernel = WhatIf("gelu", free_kernel="gelu").end_ps(saved)
    links = WhatIf("links", free_collectives=True).end_ps(saved)
    durations = [
        max(instance.ends_ps) - max(instance.starts_ps)
        for instance in saved.log.instances
        if instance.template.kind == "collective"
    ]
    assert saved.log.end_ps - links == pytest.approx(sum(durations), rel=0.1)
    # Rank 1 is on the path: its sixteen kernels follow each other.
    gelu = [instance for instance in saved.log.instances if instance.template.name == "gelu"]
    longest = sum(item.ends_ps[0] - item.starts_ps[0] for item in gelu if item.ranks == (1,))
    assert 0 < saved.log.end_ps - kernel <= longest
    assert WhatIf("nothing").end_ps(saved) == saved.log.end_ps


@pytest.mark.adr("0156-D1")
def test_findings_name_rank_line_and_rows(saved: SavedRun, found: RankedFindings) -> None:
    gains = [item["gain_ns"] for item in found["findings"]]
    assert gains == sorted(gains, reverse=True)
    by_what = {item["what"]: item for item in found["findings"]}
    kernel = by_what["gelu takes no time"]
    assert (kernel["rank"], Path(kernel["file"]).name) == (1, "elementwise.py")
    rows = {instance.launch_id: instance for instance in saved.log.instances}
    assert {rows[item].template.name for item in kernel["launches"]} == {"gelu"}
    links = by_what["links twice as fast"]
    assert (links["name"], Path(links["file"]).name) == ("all_reduce", "test_findings.py")
    # Rank 0 waits; that saves nothing at the end of the run, which is rank 1's.
    assert "no rank waits" not in by_what


@pytest.mark.adr("0156-D1")
def test_waiting_is_a_finding_where_ranks_take_turns_at_being_late(tmp_path: Path) -> None:
    def work(rank: int, torch: Any) -> None:
        torch.distributed.init_process_group()
        x = torch.zeros(512, 1024)
        for step in range(6):
            for _ in range(8 if step % 2 == rank else 1):
                ops.gelu(x)
            torch.distributed.all_reduce(x)

    _, kept = run_and_keep(
        lambda torch: torch.multiprocessing.spawn(work, (torch,), nprocs=2),
        "ahbm:2",
        tmp_path / "run",
    )
    by_what = {item["what"]: item for item in findings(kept)["findings"]}
    # Half of the sets of eight need not be waited for.
    gelu_ns = max(instance.template.duration_ps for instance in kept.log.instances) / 1000
    assert by_what["no rank waits"]["gain_ns"] > gelu_ns


@pytest.mark.adr("0156-D2")
def test_the_command_writes_table_json_and_markdown(
    saved: SavedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["findings", saved.path, *arguments])

    shown = run()
    assert shown.exit_code == 0
    assert "gelu takes no time" in shown.output
    as_json, as_text = tmp_path / "found.json", tmp_path / "found.md"
    assert run("--json", str(as_json), "--markdown", str(as_text)).exit_code == 0
    written = json.loads(as_json.read_text())
    assert written["findings"][0]["what"] in as_text.read_text()
    assert as_text.read_text().count("\n|") == 2 + len(written["findings"])
    assert run("--markdown", "-").output == as_text.read_text()
    assert run("--against", saved.path, "--fail-over", "5%").exit_code == 0
    faster = CliRunner().invoke(
        app,
        ["retime", saved.path, "--set", "links.bandwidth_gbps=8x", "--save", f"{saved.path}.fast"],
    )
    assert faster.exit_code == 0
    failed = run("--against", f"{saved.path}.fast", "--fail-over", "5%")
    assert failed.exit_code == 1
    assert "longer than" in failed.output
    for wrong in (("--fail-over", "5%"), ("--json", "-", "--markdown", "-"),
                  ("--against", saved.path, "--fail-over", "lots")):  # fmt: skip
        assert run(*wrong).exit_code == 2
