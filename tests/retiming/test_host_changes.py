"""Changes of what hosts do, held to programs that do the same."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernbench import RuntimeContext
from kernbench.cli.app import app
from kernbench.hardware import load_machine, set_keys
from kernbench.op_log import HostSpan, Instance, OpLog
from kernbench.retiming import RankedFindings, WhatIf, findings
from kernbench.retiming.host_changes import in_graphs, lines_of_actions, without_line, without_waits
from kernbench.runtime_api import Action
from kernbench.saved import SavedRun, load_run
from kernbench.torch_bridge import run_torchrun
from tests.retiming.retiming import retime, save

PROGRAM = Path(__file__).parent / "programs" / "launches.py"
MUL_UNTIL, MUL_AGAIN = 15, 18
RANKS, OPERATIONS = 2, 40


def run(path: Path, machine: str, kept: Path | None = None, ranks: int = RANKS) -> OpLog:
    context = RuntimeContext(
        load_machine(machine, ranks), ranks, data=False, check=False, record_lines=kept is not None
    )
    if kept is not None:
        context.keep_actions()
    code = compile(path.read_text(), str(path), "exec")
    with context, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_torchrun(context, path, code, [str(path)], ranks)
    if kept is not None:
        save(context, kept)
    return context.op_log


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    kept = tmp_path_factory.mktemp("runs") / "run"
    run(PROGRAM, "h100-sxm")
    run(PROGRAM, "h100-sxm", kept)
    return load_run(kept)


@pytest.fixture(scope="module")
def found(saved: SavedRun) -> RankedFindings:
    return findings(saved)


def last_step(log: OpLog, rank: int) -> list[Instance]:
    """Return the operations and the collective of a rank's second step."""
    mine = [instance for instance in log.instances if rank in instance.ranks]
    named = [item for item in mine if item.template.name in ("aten.mul_", "all_reduce")]
    return named[-OPERATIONS - 1 :]


def times_of(rows: Sequence[Instance], rank: int) -> list[tuple[str, int, int]]:
    """Return when each began and ended, from the begin of the first one."""
    first_ps = rows[0].starts_ps[rows[0].ranks.index(rank)]
    times = []
    for row in rows:
        at = row.ranks.index(rank)
        times.append((row.template.name, row.starts_ps[at] - first_ps, row.ends_ps[at] - first_ps))
    return times


def graph_launch(log: OpLog, rank: int) -> HostSpan:
    return [e for e in log.host_spans if e.rank == rank and e.label.startswith("graph")][-1]


@pytest.mark.adr("0156-D3")
@pytest.mark.parametrize("machine", ["h100-sxm", "ahbm"])
def test_launches_in_graphs_take_what_a_program_with_that_graph_takes(
    machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(PROGRAM, machine, tmp_path / "run")
    changed = WhatIf("graphs", acts=in_graphs).run(load_run(tmp_path / "run"))
    monkeypatch.setenv("CAPTURED", "1")
    captured = run(PROGRAM, machine)
    # Each rank: the first step with x, the second one.
    assert changed.detail.startswith(f"{2 * RANKS} graphs of ")
    for rank in range(RANKS):
        rows, expected = last_step(changed.log, rank), last_step(captured, rank)
        assert times_of(rows, rank) == times_of(expected, rank)
        launch, same = graph_launch(changed.log, rank), graph_launch(captured, rank)
        assert launch.end_ps - launch.start_ps == same.end_ps - same.start_ps


@pytest.mark.adr("0156-D3")
def test_a_graph_ends_where_its_host_waits_or_gets_memory(saved: SavedRun) -> None:
    ends = (Action.HOST_WAIT, Action.HOST_READ, Action.HOST_ALLOCATE, Action.COPY)
    actions = in_graphs(saved).actions
    assert saved.actions is not None
    for before, after in zip(saved.actions.actors, actions.actors, strict=True):
        assert len(before.values) == len(after.values)
        kept = [values for values in rows(before.values) if values[0] in ends]
        assert [values for values in rows(after.values) if values[0] in ends] == kept
        operations = [values for values in rows(after.values) if values[0] == Action.OPERATION]
        assert not operations


def rows(values: Sequence[int]) -> list[tuple[int, ...]]:
    item = iter(values)
    return list(zip(*[item] * 4, strict=True))


@pytest.mark.adr("0156-D4")
def test_lines_of_actions_are_those_of_the_spans(saved: SavedRun) -> None:
    lines, log = lines_of_actions(saved), saved.log
    assert log.program_lines is not None
    assert saved.actions is not None
    sites = log.program_lines.sites
    result = set()
    for actor, numbers in zip(saved.actions.actors, lines, strict=True):
        for row, number in zip(rows(actor.values), numbers, strict=True):
            if row[0] == Action.OPERATION:
                result.add(sites[number][1])
    assert {MUL_UNTIL, MUL_AGAIN} < result


@pytest.mark.adr("0156-D3")
def test_a_line_without_its_hosts_time_leaves_that_of_others(saved: SavedRun) -> None:
    log = saved.log
    assert log.program_lines is not None
    site = next(site for site in log.program_lines.sites if site[1] == MUL_UNTIL)
    changed = WhatIf("", acts=lambda run: without_line(run, site)).run(saved)
    assert changed.detail == "x.mul_(1.5)"
    number = log.program_lines.sites.index(site)
    lines = log.program_lines.of_spans
    for rank in range(RANKS):
        others = [
            (host_span.kind, host_span.label, host_span.end_ps - host_span.start_ps)
            for host_span, line in zip(log.host_spans, lines, strict=True)
            if host_span.rank == rank and host_span.kind != "wait" and line != number
        ]
        left = [
            (host_span.kind, host_span.label, host_span.end_ps - host_span.start_ps)
            for host_span in changed.log.host_spans
            if host_span.rank == rank
            and host_span.kind != "wait"
            and host_span.end_ps > host_span.start_ps
        ]
        assert left == others


@pytest.mark.adr("0156-D3")
def test_without_reads_a_host_only_waits_for_ranks(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "x, z = torch.randn(4096, 4096, device='cuda'), torch.ones(64, device='cuda')\n"
        "for _ in range(4):\n"
        "    y = x @ x\n"
        "    y[0, 0].item()\n"
        "    for _ in range(10):\n"
        "        z.mul_(1.5)\n"
    )
    before = run(program, "h100-sxm", tmp_path / "run", ranks=1)
    changed = WhatIf("", acts=without_waits).run(load_run(tmp_path / "run"))
    assert changed.detail == "4 waits"
    assert {host_span.kind for host_span in before.host_spans} >= {"wait", "read"}
    assert not {host_span.kind for host_span in changed.log.host_spans} & {"wait", "read"}
    # The launches of three of the four loops are behind products now.
    launches = [host_span for host_span in before.host_spans if host_span.label == "aten.mul_"]
    hidden_ps = sum(launch.end_ps - launch.start_ps for launch in launches) * 3 // 4
    devices_ps = sum(instance.template.duration_ps for instance in before.instances)
    assert changed.log.end_ps < before.end_ps - hidden_ps * 0.8
    assert changed.log.end_ps > devices_ps


@pytest.mark.adr("0156-D3")
def test_findings_name_what_hosts_could_do_otherwise(
    saved: SavedRun, found: RankedFindings
) -> None:
    by_what = {item["what"]: item for item in found["findings"]}
    for what in ("launches in CUDA graphs", "Python takes no time"):
        assert by_what["hosts take no time"]["gain_ns"] > by_what[what]["gain_ns"] > 0
    machine = set_keys(saved.machine, ["host.python_call_us=0"])[0]
    gain_ps = saved.log.end_ps - retime(saved, machine).op_log.end_ps
    assert by_what["Python takes no time"]["gain_ns"] == pytest.approx(gain_ps / 1000)
    line = by_what[f"no host time at launches.py:{MUL_UNTIL}"]
    assert (line["detail"], line["name"], line["line"]) == (
        "x.mul_(1.5)",
        "aten.mul_",
        MUL_UNTIL,
    )


@pytest.mark.adr("0156-D1")
def test_what_a_rank_spends_is_that_of_the_ranks_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spent = []
    for options in ((), ("--fold",)):
        names = ["--machine", "h100-sxm", "--no-data", "--nproc-per-node", "4", "--save", "kept"]
        done = CliRunner().invoke(app, ["torchrun", *options, *names, str(PROGRAM)])
        assert done.exit_code == 0, done.output
        finding = findings(load_run("kept"))["findings"]
        spent.append({item["what"]: item["spent_ns"] for item in finding})
    whole, folded = spent
    for what in ("hosts take no time", "launches in CUDA graphs"):
        assert folded[what] == pytest.approx(whole[what], rel=0.05)


@pytest.mark.adr("0156-D4")
def test_benches_have_no_findings_about_lines_of_hosts(tmp_path: Path) -> None:
    with RuntimeContext("ahbm", record_lines=True) as torch:
        torch.keep_actions()
        for _ in range(3):
            torch.zeros(16)
    save(torch, tmp_path / "run")
    result = findings(load_run(tmp_path / "run"))
    assert [item["what"] for item in result["findings"]] == ["hosts take no time"]
