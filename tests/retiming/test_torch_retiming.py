"""PyTorch programs that are done again without themselves, and without their data."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kernbench import RuntimeContext
from kernbench.analysis import memory_use
from kernbench.errors import UsageError
from kernbench.hardware import Machine, load_machine, set_keys
from kernbench.op_log import OpLog
from kernbench.retiming import Retiming
from kernbench.saved import SavedRun, load_run
from kernbench.torch_bridge import run_torchrun
from kernbench.torch_bridge.costs import kept_calls
from tests.retiming.retiming import assert_same, retime, save
from tests.tiers import daily, of_campaigns

FOLDER = Path(__file__).parent / "programs"
PROGRAMS = {"training": 2, "sharded": 4, "graphs": 1, "experts": 1}


def run(
    name: str, machine: Machine, *, keeps: bool = False, record_memory: bool = False
) -> RuntimeContext:
    path, ranks = FOLDER / f"{name}.py", PROGRAMS[name]
    context = RuntimeContext(machine, ranks, data=False, check=False, record_memory=record_memory)
    if keeps:
        context.keep_actions()
    code = compile(path.read_text(), str(path), "exec")
    with context, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_torchrun(context, path, code, [str(path)], ranks)
    return context


def log_on(name: str, machine: str, *settings: str) -> tuple[Machine, OpLog]:
    """Return a changed machine, and the log of the program itself on it."""
    changed = set_keys(load_machine(machine, PROGRAMS[name]), settings)[0]
    warm_up(name, changed)
    return changed, run(name, changed).op_log


def warm_up(name: str, machine: Machine) -> None:
    """Run a program as often as it takes until libraries do nothing any more that they do once.

    What they do once in a process takes time, too: calls of Python.
    """
    if machine.spec.host is not None:
        ends = [run(name, machine).op_log.end_ps]
        while len(ends) < 2 or ends[-1] != ends[-2]:
            assert len(ends) < 6, ends
            ends.append(run(name, machine).op_log.end_ps)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def keep(name: str, machine: str) -> tuple[OpLog, SavedRun]:
        loaded = load_machine(machine, PROGRAMS[name])
        warm_up(name, loaded)
        context = run(name, loaded, keeps=True)
        save(context, folder / f"{name}-{machine}")
        return context.op_log, load_run(folder / f"{name}-{machine}")

    return keep


@pytest.mark.adr("0155-D1")
@pytest.mark.parametrize("machine", daily("h100-sxm", of=("ahbm", "h100-sxm")))
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_its_machine_it_is_the_same_run(name: str, machine: str, kept: Any) -> None:
    log, saved = kept(name, machine)
    assert_same(retime(saved).op_log, log)


@pytest.mark.adr("0155-D1")
@pytest.mark.parametrize(
    ("name", "machine", "settings"),
    [
        of_campaigns("training", "h100-sxm", ["sip.cube.hbm_bandwidth_gbps=0.25x"]),
        ("training", "h100-sxm", ["host.python_call_us=3x", "host.collective_us=0"]),
        of_campaigns(
            "training", "h100-sxm", ["host.operation.product_us=2x", "sip.front_end_us=4x"]
        ),
        of_campaigns("training", "a100-sxm-80g", []),
        of_campaigns("training", "ahbm", []),
        of_campaigns("sharded", "b200", []),
        ("sharded", "h100-sxm", ["links.bandwidth_gbps=0.1x"]),
        ("graphs", "mi300x", []),
        of_campaigns("experts", "b200", []),
        of_campaigns("experts", "ahbm", []),
    ],
)
def test_elsewhere_it_is_the_run_of_the_program_there(
    name: str, machine: str, settings: list[str], kept: Any
) -> None:
    _, saved = kept(name, "h100-sxm")
    changed, expected = log_on(name, machine, *settings)
    op_log = retime(saved, changed).op_log
    assert op_log.end_ps == expected.end_ps
    assert op_log.to_arrow().equals(expected.to_arrow())


@pytest.mark.adr("0155-D2")
def test_programs_that_read_times_are_said(kept: Any) -> None:
    _, saved = kept("training", "h100-sxm")
    said = [line for ask in retime(saved).run.remarks for line in ask()]
    assert said == [
        "the program made 2 readings of times between events, and decides by that as it did"
    ]


@pytest.mark.adr("0155-D1")
def test_graphs_take_the_time_of_another_machine(kept: Any) -> None:
    _, saved = kept("graphs", "ahbm")
    changed, expected = log_on("graphs", "tpu-v5e-like", "sip.host_launch_us=3")
    assert_same(retime(saved, changed).op_log, expected)


@pytest.mark.adr("0155-D2")
def test_python_that_was_not_counted_is_not_guessed(kept: Any) -> None:
    with pytest.raises(UsageError, match="h100-sxm has a host section, but the run was saved on"):
        retime(kept("graphs", "ahbm")[1], load_machine("h100-sxm", 1))


@pytest.mark.adr("0155-D1")
@pytest.mark.parametrize("machine", daily("ahbm", of=("ahbm", "h100-sxm")))
def test_the_record_of_memory_is_that_of_the_run(machine: str, tmp_path: Path) -> None:
    context = run("training", load_machine(machine, 2), keeps=True, record_memory=True)
    save(context, tmp_path / "run")
    saved = load_run(tmp_path / "run")
    retiming = Retiming(saved, saved.machine, keeps_memory=True)
    with retiming.context:
        retiming.work()
    use = memory_use(retiming.context.op_log)
    assert use["ranks"] == memory_use(context.op_log)["ranks"]
    assert use["peak"] == memory_use(saved.log)["peak"]


@pytest.mark.adr("0155-D1")
def test_an_operation_that_is_gone_takes_as_long_as_it_did(kept: Any) -> None:
    log, saved = kept("training", "ahbm")
    works = [
        {**item, "operation": ["aten::no_such_operation", ""]} if "operation" in item else item
        for item in saved.actions.described["works"]
    ]
    actions = replace(saved.actions, described={**saved.actions.described, "works": works})
    without = replace(saved)
    without.__dict__["actions"] = actions
    result = retime(without)
    assert_same(result.op_log, log)
    remarks = [line for ask in result.run.remarks for line in ask()]
    assert any("take as long as they did: aten." in line for line in remarks)


def test_operations_of_fsdp_are_there_without_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = list[str]()
    monkeypatch.setattr(kept_calls, "import_module", imported.append)
    value = {"kind": "operation", "operation": ["fsdp::no_such_operation", ""]}
    with pytest.raises(AttributeError, match="no_such_operation"):
        kept_calls.timing_of_call(None, value)  # type: ignore[arg-type]
    assert imported == ["torch.distributed.fsdp"]
