"""A step of a run, in runs that are done again, and as the commands that explain runs show it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kernbench.analysis import part_of
from kernbench.hardware import set_keys
from kernbench.op_log import find_steps
from kernbench.retiming import WhatIf, findings, host_findings
from kernbench.retiming.host_changes import compiled, in_graphs, with_half_the_operations
from kernbench.runtime_api import Action
from kernbench.saved import SavedRun, load_run
from tests.cli.command_line import kernbench
from tests.retiming.retiming import assert_same, retime
from tests.retiming.test_host_changes import run

PROGRAM = Path(__file__).parent / "programs" / "steps.py"
STEPS = 4


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    kept = tmp_path_factory.mktemp("runs") / "run"
    run(PROGRAM, "h100-sxm", kept, ranks=1)
    return load_run(kept)


@pytest.mark.adr("0260-D5")
def test_a_run_that_is_done_again_has_the_ranges_of_its_program(saved: SavedRun) -> None:
    assert_same(retime(saved).op_log, saved.log)
    slow = retime(saved, set_keys(saved.machine, ["host.slowdown=2x"])[0]).op_log
    names = [(host_range.rank, host_range.name) for host_range in saved.log.host_ranges]
    assert [(host_range.rank, host_range.name) for host_range in slow.host_ranges] == names
    part = part_of(saved.log, "step 2")
    assert 1.9 < part.time_ps(slow) / part.time_ps(saved.log) < 2.1


def test_a_key_gains_what_the_same_step_gains(saved: SavedRun) -> None:
    done = kernbench("sensitivity", saved.path, "--key", "host.slowdown", "--json", "-")
    result = json.loads(done.output)
    part = part_of(saved.log)
    assert result["part"] == part.said
    assert result["time_ns"] == part.time_ps(saved.log) / 1000
    (key,) = result["keys"]
    slow = find_steps(retime(saved, set_keys(saved.machine, ["host.slowdown=1.1x"])[0]).op_log)
    assert slow is not None
    names = [step.name for step in slow.steps]
    step_ps = slow.steps[names.index(part.name)].window.mean_ps
    assert key["gain_ns"] == pytest.approx(result["time_ns"] - step_ps / 1000)
    assert key["gain_share"] == pytest.approx(-0.1, abs=0.01)


@pytest.mark.adr("0260-D5")
def test_a_finding_gains_what_the_same_step_gains(saved: SavedRun) -> None:
    part = part_of(saved.log, "step 2")
    result = findings(saved, part)
    by_name = {item["what"]: item for item in result["findings"]}
    slow = WhatIf("", settings=("host.slowdown=0.5x",)).run(saved).log
    again = find_steps(slow)
    assert again is not None
    expected = (part.time_ps(saved.log) - again.steps[2].window.mean_ps) / 1000
    assert by_name["a host twice as fast"]["gain_ns"] == pytest.approx(expected)
    # A host that takes no time is at the end of all steps at once; the device still has its own.
    mine = [
        instance
        for instance in saved.log.instances
        if part.window and part.window.holds(0, instance.starts_ps[0])
    ]
    device_ns = sum(item.template.duration_ps for item in mine) / 1000
    left_ns = by_name["hosts take no time"]["time_ns"]
    assert device_ns / 2 < left_ns < part.time_ps(saved.log) / 1000 / 2
    # Each step gets a graph, which other ranges do not cut.
    changed = in_graphs(saved)
    (rank,) = changed.actions.actors
    kinds = rank.values[::4]
    ends = [place for place, kind in enumerate(kinds) if kind == Action.RANGE_END]
    graphs = [place for place, kind in enumerate(kinds) if kind == Action.GRAPH_OPERATIONS]
    assert len(ends) == 4 * STEPS
    outer = [ends[place] for place in range(3, 4 * STEPS, 4)]
    per_step = [
        sum(first < place < last for place in graphs)
        for first, last in zip([0, *outer], outer, strict=False)
    ]
    assert len({*per_step[1:]}) == 1
    assert per_step[1] <= 2


def test_hosts_that_do_less_are_tried_unasked_where_they_have_the_time(saved: SavedRun) -> None:
    findings = host_findings(saved, part_of(saved.log))
    assert findings is not None
    gains = {item["what"]: item["gain_ns"] for item in findings["findings"]}
    wanted = {"launches in CUDA graphs", "launches by torch.compile", "half as many operations"}
    assert wanted <= gains.keys()
    assert all(0 < gain < findings["time_ns"] for gain in gains.values())
    times = saved.machine.spec.host
    assert times is not None
    # What is left of a compiled launch is what the machine says, and the entry of its graph.
    log = WhatIf("", acts=compiled).run(saved).log
    spans = [host_span for host_span in log.host_spans if host_span.kind == "launch"]
    taken = {span.end_ps - span.start_ps for span in spans}
    launch_ps, call_ps = (
        round(float(item * times.slowdown) * 1e6)
        for item in (times.compiled_launch_us, times.compiled_call_us)
    )
    assert {launch_ps, launch_ps + call_ps} <= taken
    half = WhatIf("", acts=with_half_the_operations).run(saved).log
    assert len(half.instances) == len(saved.log.instances)


@pytest.mark.adr("0260-D4")
def test_commands_are_of_a_steady_step_and_of_what_is_asked_for(saved: SavedRun) -> None:
    def why(*more: str) -> Any:
        done = kernbench("why", saved.path, "--json", "-", *more)
        assert done.exit_code == 0, done.output
        return json.loads(done.output)

    steady, whole, first = why(), why("--range", "all"), why("--steps", "0")
    assert steady["part"]["name"] in {f"step {number}" for number in range(1, STEPS)}
    assert steady["startup"]["time_ns"] > steady["time_ns"]
    assert "part" not in whole
    assert whole["time_ns"] == saved.log.end_ps / 1000
    for result in (steady, whole, first):
        assert sum(item["time_ns"] for item in result["spent"]) == pytest.approx(result["time_ns"])
        path = sum(item["end_ns"] - item["start_ns"] for item in result["critical_path"])
        assert path == pytest.approx(result["time_ns"])
    python = [item for item in steady["spent"] if item["resource"] == "host Python"]
    assert {item["name"] for item in python} == {"Python"}
    lines = PROGRAM.read_text().splitlines()
    assert any("layers(x)" in lines[item["line"] - 1] for item in python)
    shown = kernbench("why", saved.path).output
    for said in ("the steady one of 4 steps", "in start-up", "what would shorten hosts' time"):
        assert said in shown
    assert re.search(r"Python +host Python +steps.py:\d+", shown)
    listed = kernbench("findings", saved.path, "--range", "update").output
    assert "4 ranges of the name" in listed
    same = json.loads(kernbench("diff", saved.path, saved.path, "--json", "-").output)
    assert same["before_ns"] == steady["time_ns"]
    marked = kernbench("diff", saved.path, saved.path, "--markdown", "-").output
    assert "**as long**" in marked
    # What is the same of both is said once.
    assert marked.count("the steady one of 4 steps") == 1
    for wrong, said in (
        (("--range", "forward"), "no range or step of this run is called 'forward'"),
        (("--steps", "7:"), "--steps 7: are none of its 4 steps, 0 to 3"),
    ):
        for command in ("why", "findings"):
            done = kernbench(command, saved.path, *wrong)
            assert (done.exit_code, said in done.output) == (2, True), done.output
