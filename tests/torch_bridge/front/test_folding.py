"""Ranks that do the same are run once (ADR-0166); the oracle is the run of all of them."""

from __future__ import annotations

import re
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

pytest.importorskip("torch")

from kernbench.errors import UsageError
from kernbench.hardware import Machine, load_machine, set_keys
from kernbench.op_log import OpLog
from kernbench.retiming import placements_of_all
from kernbench.runtime_api import (
    Folding,
    RankAxis,
    RuntimeContext,
    SpawnException,
    Timetable,
)
from kernbench.saved import load_run
from kernbench.torch_bridge import run_torchrun
from tests.forked import PYTORCH, run_forked
from tests.retiming.retiming import assert_same, retime, save
from tests.tiers import of_campaigns
from tests.torch_bridge.replaced.test_operators_of_engines import OF_PEERS
from tests.torch_bridge.running import PROGRAMS, simulated
from tests.torch_bridge.shared_objects import make_engine

PROGRAM = PROGRAMS / "folded.py"


def folded(
    case: str,
    ranks: int,
    machine: str | Machine,
    axes: tuple[RankAxis, ...] = (),
    *,
    keeps: bool = False,
    program: Path = PROGRAM,
    placements: Timetable | None = None,
) -> RuntimeContext:
    context = RuntimeContext(machine=machine, data=False)
    if keeps:
        context.keep_actions()
    context.run.folding = Folding(ranks, axes)
    context.run.folding.placements = placements
    context.op_log.running = context.run.folding.running
    run_in(context, case, ranks, program)
    return context


def run_in(context: RuntimeContext, case: str, ranks: int, program: Path = PROGRAM) -> None:
    code = compile(program.read_text(), str(program), "exec")
    nodes = nodes_in(context.machine)
    with context:
        argv = [str(program), *case.split()]
        run_torchrun(context, program, code, argv, ranks // nodes, num_nodes=nodes)


def nodes_in(machine: Machine) -> int:
    return machine.num_sips // machine.sips_per_node


def commands(log: OpLog, rank: int) -> list[tuple[str, int, int]]:
    return [
        (instance.template.name, instance.starts_ps[place], instance.ends_ps[place])
        for instance in log.instances
        for place, of in enumerate(instance.ranks)
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


MODELS = PROGRAMS / "folded_models.py"


@pytest.mark.slow
@pytest.mark.adr("0185-D1", "0185-D2")
@pytest.mark.parametrize(
    ("case", "machine", "ranks"),
    [
        of_campaigns("ddp", "ahbm:8", 8),
        of_campaigns("fsdp", "ahbm-mesh:8", 8),
        of_campaigns("hsdp", "ahbm:8", 8),
        of_campaigns("tp_dp", "ahbm:8", 8),
        ("tp_pp_dp", "ahbm:8", 8),
        of_campaigns("ep", "ahbm:8", 8),
        ("routed", "ahbm:8", 8),
        ("ddp", "two nodes", 16),
        of_campaigns("tp_dp", "two nodes", 16),
        of_campaigns("fsdp", "two nodes", 16),
        of_campaigns("ep", "two nodes", 16),
        of_campaigns("fsdp", "eight nodes", 64),
    ],
)
def test_ranks_that_run_take_as_long_as_with_all(
    case: str, machine: str, ranks: int, without_host: str
) -> None:
    on = {"two nodes": f"{without_host}:2x8", "eight nodes": f"{without_host}:8x8"}
    loaded = load_machine(on.get(machine, machine))
    axes = (RankAxis(ranks // 2, 2),) if case == "tp_pp_dp" else ()
    tried = folded(case, ranks, loaded, axes, keeps=True, program=MODELS)
    assert tried.run.folding is not None
    assert not tried.run.folding.is_exact
    placements = placements_of_all(tried)
    result = folded(case, ranks, loaded, axes, program=MODELS, placements=placements)
    assert result.run.folding is not None
    assert result.run.folding.is_exact
    nodes = nodes_in(loaded)
    whole = simulated(
        MODELS, case, nprocs=ranks // nodes, machine=loaded, data=False, num_nodes=nodes
    ).op_log
    for rank in result.run.folding.running:
        assert sorted(commands(result.op_log, rank)) == sorted(commands(whole, rank))


@pytest.mark.slow
@pytest.mark.adr("0166-D1")
def test_stages_of_a_pipeline_take_as_long_as_in_a_run_of_all_ranks(without_host: str) -> None:
    whole = simulated("folded.py", "pipeline", nprocs=8, machine=without_host, data=False).op_log
    op_log = folded("pipeline", 8, without_host, (RankAxis(4, 2),)).op_log
    assert {rank for instance in op_log.instances for rank in instance.ranks} == {0, 4}
    for rank in (0, 4):
        assert commands(op_log, rank) == commands(whole, rank)


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
        "all_reduce at one time share links" in remark for remark in context.run.folding.remarks()
    )
    # What an absent rank would have sent is what the rank that runs has.
    assert capfd.readouterr().out.strip() == str(["rank 0"] * 4)


@pytest.mark.adr("0291-D1", "0291-D2")
def test_what_ranks_mark_and_send_in_turns_is_as_with_all(
    capfd: pytest.CaptureFixture[str],
) -> None:
    simulated("folded.py", "in_turns", nprocs=4, data=False)
    (whole,) = set(capfd.readouterr().out.splitlines())
    folded("in_turns", 4, "ahbm:4")
    assert capfd.readouterr().out.splitlines() == [whole]


@pytest.mark.adr("0291-D3")
def test_a_queue_for_ranks_that_do_not_run_has_no_readers(tmp_path: Path) -> None:
    """By a package that is laid out as vLLM is, whose queue waits for its readers."""
    folder = tmp_path / "vllm/distributed/device_communicators"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    (folder / "shm_broadcast.py").write_text(
        "class MessageQueue:\n"
        "    def __init__(self, n_reader, n_local_reader):\n"
        "        self.readers = n_reader, n_local_reader\n"
        "    @staticmethod\n"
        "    def create_from_process_group(group, size):\n"
        "        return MessageQueue(3, 3)\n"
    )
    program = tmp_path / "queues.py"
    program.write_text(
        "import sys\n"
        "import torch.distributed as dist\n"
        "from vllm.distributed.device_communicators.shm_broadcast import MessageQueue\n"
        "dist.init_process_group('gloo')\n"
        "queue = MessageQueue.create_from_process_group(dist.group.WORLD, 1)\n"
        "expected = (0, 0) if sys.argv[1] == 'folded' else (3, 3)\n"
        "assert queue.readers == expected, queue.readers\n"
    )
    simulated(program, "whole", nprocs=4, data=False)
    folded("folded", 4, "ahbm:4", program=program)


@pytest.mark.adr("0291-D4")
def test_an_engines_own_all_reduce_takes_as_long_as_with_all(tmp_path: Path) -> None:
    make_engine(tmp_path, {"_C": ("_C_custom_ar", OF_PEERS)}, "engine_of_peers")
    program, args = PROGRAMS / "custom_all_reduce.py", f"{tmp_path} timed"
    machine = "h100-sxm:4"
    whole = simulated(program, *args.split(), nprocs=4, machine=machine, data=False).op_log
    times = [
        [(name, end_ps - start_ps) for name, start_ps, end_ps in commands(op_log, 0)]
        for op_log in (whole, folded(args, 4, machine, program=program).op_log)
    ]
    reduced = [[row for row in rows if "all_reduce" in row[0]] for rows in times]
    assert reduced[1] == reduced[0]
    assert len(reduced[0]) >= 4


def test_ranks_in_a_ring_of_all_are_not_folded() -> None:
    with pytest.raises(SpawnException) as caught:
        folded("to_next", 4, "ahbm:4")
    assert "pass the pipeline's own group" in str(caught.value.exceptions[0])


def test_unequal_work_of_experts_is_not_folded() -> None:
    with pytest.raises(SpawnException) as caught:
        folded("uneven", 4, "ahbm:4")
    assert "sends parts of 1 to 4 elements" in str(caught.value.exceptions[0])


@pytest.mark.adr("0195-D1")
def test_ranks_of_a_row_with_unequal_parts_all_run() -> None:
    context = RuntimeContext(machine="ahbm:8", data=False)
    context.run.folding = Folding(8)
    with pytest.raises(SpawnException) as caught:
        run_in(context, "uneven_in_rows", 8)
    assert "each of them has to run" in str(caught.value.exceptions[0])
    assert context.run.folding.wanted == RankAxis(1, 4)
    axes = (RankAxis(1, 4),)
    placements = placements_of_all(folded("uneven_in_rows", 8, "ahbm:8", axes, keeps=True))
    result = folded("uneven_in_rows", 8, "ahbm:8", axes, placements=placements)
    assert result.run.folding is not None
    assert result.run.folding.is_exact
    machine = "ahbm:8"
    whole = simulated("folded.py", "uneven_in_rows", nprocs=8, machine=machine, data=False).op_log
    for rank in range(4):
        assert commands(result.op_log, rank) == commands(whole, rank)


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.adr("0195-D1")
def test_ranks_that_share_a_text_all_run_and_take_as_long_as_with_all() -> None:
    program, case, axes = PROGRAMS / "long_context.py", "512 4 1 64 2 alltoall", (RankAxis(1, 4),)
    context = RuntimeContext(machine="ahbm:8", data=False)
    context.run.folding = Folding(8)
    with pytest.raises(SpawnException):
        run_in(context, case, 8, program)
    assert context.run.folding.wanted == axes[0]
    tried = folded(case, 8, "ahbm:8", axes, keeps=True, program=program)
    result = folded(case, 8, "ahbm:8", axes, program=program, placements=placements_of_all(tried))
    machine = load_machine("ahbm:8")
    whole = simulated(program, *case.split(), nprocs=8, machine=machine, data=False).op_log
    for rank in range(4):
        assert sorted(commands(result.op_log, rank)) == sorted(commands(whole, rank))


def test_a_group_without_whoever_runs_for_its_ranks_is_refused() -> None:
    with pytest.raises(UsageError, match="rank 0 runs for rank 1, but is not in its group"):
        Folding(4).positions((1, 2, 3), 1)


@pytest.mark.adr("0166-D4")
def test_a_report_is_of_the_ranks_that_ran() -> None:
    context = folded("replicas", 4, "ahbm:4")
    report = context.report()
    assert report["ranks"] == 4
    assert [item["rank"] for item in report["per_rank"]] == [0]
    assert {rank for instance in context.op_log.instances for rank in instance.ranks} == {0}
    assert context.run.folding is not None
    assert context.run.folding.remarks()[0].startswith("folded: 1 of 4 ranks ran (0)")


def on_command_line(case: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["kernbench", "torchrun", "--nproc-per-node", "4", *options]
    return run_forked(*command, "--machine", "ahbm:4", str(PROGRAM), case, imports=PYTORCH)


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.adr("0166-D5", "0185-D4")
def test_others_are_run_to_compare_them() -> None:
    result = on_command_line("branching", "--no-data", "--fold", "--fold-check", "1")
    assert re.search(r"rank [123] does not do what rank 0 does", result.stdout)
    assert re.search(r"aten.mm at folded.py:\d+ instead of all_reduce at folded.py", result.stdout)
    # A check that failed: nothing is claimed of times.
    assert result.returncode == 1
    assert "folded: 1 of 4 ranks ran (0)" in result.stdout
    assert "as long as with all ranks" not in result.stdout
    # Nor is anything without one.
    result = on_command_line("branching", "--no-data", "--fold")
    assert "folded: if they do, they took as long as with all ranks" in result.stdout
    result = on_command_line("pipeline", "--no-data", "--fold=check")
    assert "starts again" not in result.stderr
    assert result.returncode == 0
    assert "each of ranks 1 and 3 did what ran for it did" in result.stdout
    assert "folded: they took as long as with all ranks, to the picosecond" in result.stdout
    # Only what was checked is claimed: two other ranks do what rank 0 does, and rank 1 does not.
    result = on_command_line("late", "--no-data", "--fold-check", "1")
    assert result.returncode == 0
    assert re.search(r"rank [23] did what ran for it did", result.stdout)
    assert "if the 2 that were not checked do as well, they took as long" in result.stdout
    assert "--fold-check 3 checks them all" in result.stdout
    assert "1 of 3 other ranks ran" in result.stdout
    result = on_command_line("late", "--no-data", "--fold-check", "3")
    assert result.returncode == 1
    assert "rank 1 does not do what rank 0 does" in result.stdout


@pytest.mark.adr("0185-D3")
def test_how_long_ranks_are_held_up_is_said() -> None:
    context = folded("replicas", 4, "ahbm:4")
    folding = context.run.folding
    assert folding is not None
    assert "all_reduce" in folding.levelled
    held = re.search(r"up to ([0-9.]+) us", " ".join(folding.remarks()))
    whole = simulated("folded.py", "replicas", nprocs=4, data=False).op_log
    assert held is not None
    ends_ps = [
        next(end_ps for name, _, end_ps in commands(log, 0) if name == "all_reduce")
        for log in (context.op_log, whole)
    ]
    longer_us = (ends_ps[0] - ends_ps[1]) / 1e6
    assert 0 < longer_us <= float(held[1]) + 0.01


@pytest.mark.parametrize(
    ("more", "runs", "said"),
    [
        ([], 2, "they took as long as with all ranks"),
        (["--no-fold-bound"], 1, "as --no-fold-bound lets the program run once"),
    ],
)
def test_a_program_runs_unseen_before_unless_it_is_to_run_once(
    more: list[str], runs: int, said: str, tmp_path: Path
) -> None:
    program, ran = tmp_path / "counted.py", tmp_path / "ran"
    program.write_text(
        "import torch\n"
        "import torch.distributed as dist\n"
        f"open({str(ran)!r}, 'a').write('x')\n"
        "dist.init_process_group('nccl')\n"
        "dist.broadcast(torch.ones(4, device='cuda'), 0)\n"
    )
    command = ["kernbench", "torchrun", "--nproc-per-node", "4", "--machine", "ahbm:4"]
    command += ["--no-data", "--fold", *more, str(program)]
    result = run_forked(*command, imports=PYTORCH)
    assert result.returncode == 0, result.stderr
    assert said in result.stdout
    assert len(ran.read_text()) == runs


@pytest.mark.adr("0185-D2")
def test_a_program_that_comes_at_other_times_is_noticed() -> None:
    tried = folded("replicas", 4, "ahbm:4", keeps=True)
    placements = placements_of_all(tried)
    # On another machine ranks come later.
    late = set_keys(load_machine("ahbm:4"), ["sip.host_launch_us=3"])[0]
    again = folded("replicas", 4, late, placements=placements)
    assert again.run.folding is not None
    assert not again.run.folding.is_exact
    assert "came at another time than with all ranks" in again.run.folding.remarks()[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--fold"], "add --no-data"),
        (["--fold-check", "1"], "add --no-data"),
    ],
)
def test_what_does_not_go_together_is_refused(options: list[str], said: str) -> None:
    result = on_command_line("replicas", *options)
    assert result.returncode == 2
    assert said in result.stderr


@pytest.mark.adr("0155-D1")
@pytest.mark.parametrize(("case", "axes"), [("pipeline", (RankAxis(4, 2),)), ("replicas", ())])
def test_a_folded_run_is_done_again_folded(
    case: str, axes: tuple[RankAxis, ...], without_host: str, tmp_path: Path
) -> None:
    context = folded(case, 8, without_host, axes, keeps=True)
    save(context, tmp_path / "run")
    again = retime(load_run(tmp_path / "run"))
    assert_same(again.op_log, context.op_log)
    assert again.op_log.running == context.op_log.running
    # On other links, as the program itself is there.
    machine = set_keys(load_machine(without_host, 8), ["links.bandwidth_gbps=0.25x"])[0]
    expected = folded(case, 8, machine, axes).op_log
    assert expected.end_ps > context.op_log.end_ps
    assert_same(retime(load_run(tmp_path / "run"), machine).op_log, expected)
