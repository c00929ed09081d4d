"""What a check of a folded run compares, and what it says (ADR-0231).

The oracle is the program's text: which rank differs, and at which line, is written there.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("torch")

from kernbench.cli.options import COVERING
from kernbench.cli.programs.fold_checks import axes_of_more, chosen, ranks_named_in
from kernbench.retiming import RankWork, first_difference, work_of_ranks
from kernbench.runtime_api import Folding, RankAxis, RuntimeContext
from tests.forked import PYTORCH, run_forked
from tests.tiers import daily, of_campaigns
from tests.torch_bridge.front.test_folding import run_in
from tests.torch_bridge.running import PROGRAMS

PROGRAM = PROGRAMS / "fold_differences.py"
MODELS = PROGRAMS / "folded_models.py"
LINES = PROGRAM.read_text().splitlines()
DIFFERING = {
    "checkpoint": "copy_to_host",
    "source_prepares": "aten.mm",
    "side_stream": "on stream 1",
    "sleeps": "time.sleep",
    "straggles": "aten.mm",
    "uneven_batch": "[24, 64]",
    "sequence_lengths": "[2, 4, 16, 16]",
    "logs_loss": "copy_to_host",
    "conditional_reduce": "instead of the end",
    "own_group": "among 1 ranks",
    "own_dtype": "bfloat16",
    "other_order": "aten.relu",
    "holds_memory": "instead of",
    "evaluates": "instead of barrier",
    "accumulates": "aten.add_",
    "seeds_decide": "aten.ones of float32",
    "objects": "all_gather of uint8",
    "profiles": "instead of barrier",
    "finds_file": "instead of aten.ones",
    "reads_environment": "aten.mm",
    "ends_early": "the end instead of aten.ones",
    "hooks": "aten.mul",
    "copies": "copy_to_host",
}
"""By case, what is said of the rank that differs."""
REFUSED = {
    "neighbours": "the program cannot be folded",
    "uneven_all_to_all": "these ranks have unequal work",
}
TWINS = [line[4:].partition("(")[0] for line in LINES if line.startswith("def twin_")]

DAILY_DIFFERING = ("sleeps", "own_dtype")


@cache
def works(case: str, ranks: int, base: int, odd: int = 1) -> dict[int, RankWork]:
    """Return what the ranks did that ran with a rank in the place of the first."""
    context = RuntimeContext(
        machine=f"ahbm:{ranks}", data=False, record_lines=True, record_memory=True
    )
    Folding(ranks, (), base).begin(context.run)
    context.keep_actions(with_sites=True)
    run_in(context, f"{case} {odd}", ranks, PROGRAM)
    return work_of_ranks(context)


def line_of(text: str) -> int:
    """Return the number of the first line that has a text."""
    return next(number for number, line in enumerate(LINES, 1) if text in line)


@pytest.mark.adr("0231-D1")
@pytest.mark.parametrize("case", daily(*DAILY_DIFFERING, of=DIFFERING))
def test_a_rank_that_differs_is_told_by_line(case: str) -> None:
    known = works(case, 4, 0)[0]
    differs = first_difference(known, works(case, 4, 1)[1], rank=0)
    assert differs is not None
    assert differs.is_of_work
    assert DIFFERING[case] in differs.text
    named = [int(line) for line in re.findall(r"fold_differences\.py:(\d+)", differs.text)]
    assert named
    assert max(named) <= len(LINES)
    if case not in ("sequence_lengths", "seeds_decide"):
        # Ranks 2 and 3 are as rank 0, and there each of them counts.
        assert first_difference(known, works(case, 4, 2)[2], rank=0) is None


@pytest.mark.adr("0231-D1")
@pytest.mark.slow
@pytest.mark.parametrize("odd", daily(2, of=(1, 2, 3)))
def test_each_rank_may_be_the_one_that_differs(odd: int) -> None:
    known = works("straggles", 4, 0, odd)[0]
    for rank in (1, 2, 3):
        differs = first_difference(known, works("straggles", 4, rank, odd)[rank], rank=0)
        assert (differs is not None) == (rank == odd)


@pytest.mark.adr("0231-D2")
@pytest.mark.parametrize("case", daily("twin_values", of=TWINS))
def test_a_rank_that_only_has_other_values_does_not_differ(case: str) -> None:
    known = works(case, 4, 0)[0]
    for rank in (1, 3):
        assert first_difference(known, works(case, 4, rank)[rank], rank=0) is None


def test_memory_alone_is_a_difference_with_its_line() -> None:
    differs = first_difference(
        works("holds_memory", 4, 0)[0], works("holds_memory", 4, 1)[1], rank=0
    )
    assert differs is not None
    line = line_of("held = torch.empty(1 << 20")
    assert f"the first to differ is 4.00 MiB at fold_differences.py:{line}" in differs.text


@pytest.mark.adr("0231-D3")
@pytest.mark.parametrize(
    ("ranks", "per_node", "sizes"),
    [(16, 8, (2, 8)), (64, 8, (8, 8)), (64, 8, (4, 4, 4)), (12, 6, (3, 4)), (128, 8, (64, 2))],
)
def test_a_check_covers_each_place_in_a_node_and_each_group(
    ranks: int, per_node: int, sizes: tuple[int, ...]
) -> None:
    stride, axes = 1, []
    for size in reversed(sizes):
        axes.append(RankAxis(stride, size))
        stride *= size
    groups = [tuple(axis.stride * at for at in range(axis.size)) for axis in axes]
    ran = {0, *chosen(Folding(ranks), groups, per_node, COVERING).bases}
    assert {rank % per_node for rank in ran} == set(range(per_node))
    for axis in axes:
        rows = {rank - axis.position(rank) * axis.stride for rank in range(ranks)}
        assert {rank - axis.position(rank) * axis.stride for rank in ran} == rows
    assert len(ran) < ranks or ranks <= 12


@pytest.mark.adr("0231-D3")
def test_up_to_eight_ranks_all_are_run() -> None:
    assert chosen(Folding(8), [tuple(range(8))], 8, COVERING).bases == list(range(1, 8))
    # Those of a pipeline run together.
    of_stages = Folding(8, (RankAxis(4, 2),))
    assert chosen(of_stages, [(0, 1, 2, 3)], 8, COVERING).bases == [1, 2, 3]


@pytest.mark.adr("0231-D3")
def test_the_last_rank_and_those_that_the_program_names_are_run() -> None:
    program = """
def logs(rank, world):
    return rank == 5 or (rank in (9, 12) and world > 3) or rank == world - 1
WIDTH = 11
"""
    named = ranks_named_in(compile(program, "program.py", "exec"))
    assert named == {3, 5, 9, 12}
    result = chosen(Folding(16), [tuple(range(16))], 8, COVERING, named)
    assert {3, 5, 9, 12, 15} <= set(result.bases)
    assert result.covers == "all 8 places in a node and all 1 groups of ranks"
    assert (
        "2 of 5 ranks that the program names"
        in chosen(Folding(16), [tuple(range(16))], 8, 2, named).covers
    )


def test_a_check_of_some_says_what_it_has_not_covered() -> None:
    groups = [tuple(range(8)), (0, 8)]
    result = chosen(Folding(16), groups, 8, 2)
    assert len(result.bases) == 2
    assert result.covers == "3 of 8 places in a node and 5 of 10 groups of ranks"


def test_more_ranks_are_taken_from_each_group() -> None:
    assert axes_of_more((), [tuple(range(0, 12, 4))], 12) == (RankAxis(4, 3),)
    assert axes_of_more((), [tuple(range(16))], 16) == (RankAxis(1, 4),)
    assert axes_of_more((RankAxis(4, 2),), [(0, 4), (0, 1, 2, 3)], 8) == (RankAxis(1, 4),)
    rows = [tuple(range(16)), tuple(range(8)), (0, 8)]
    assert axes_of_more((), rows, 16) == (RankAxis(1, 2), RankAxis(8, 2))
    assert axes_of_more((), [], 8) == ()


def on_command_line(
    case: str, *options: str, machine: str = "ahbm:4", ranks: int = 4, nodes: int = 1
) -> subprocess.CompletedProcess[str]:
    command = ["kernbench", "torchrun", "--nproc-per-node", str(ranks), "--nnodes", str(nodes)]
    command += ["--machine", machine, "--no-data", *options, str(PROGRAM), *case.split()]
    return run_forked(*command, imports=PYTORCH)


@pytest.mark.slow
@pytest.mark.parametrize("case", daily("neighbours", of=REFUSED))
def test_what_cannot_be_folded_is_refused(case: str) -> None:
    result = on_command_line(case, "--fold=check")
    assert result.returncode == 1
    assert REFUSED[case] in result.stderr


@pytest.mark.slow
@pytest.mark.adr("0166-D5")
@pytest.mark.adr("0231-D1")
def test_only_what_was_compared_is_claimed() -> None:
    result = on_command_line("straggles 1", "--fold=check")
    assert result.returncode == 1
    line = line_of("tensor = tensor @ tensor")
    assert "fold check: rank 1 does not do what rank 0 does, which ran for it: aten.mm at " in (
        result.stdout
    )
    assert f"fold_differences.py:{line} instead of" in result.stdout
    assert "each of ranks 2 and 3 did what ran for it did" in result.stdout
    assert "picosecond" not in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("case", daily("twin_values", of=("twin_values", "twin_trains")))
def test_what_was_compared_and_is_the_same_is_claimed_to_the_picosecond(case: str) -> None:
    result = on_command_line(case, "--fold=check")
    assert result.returncode == 0
    assert "each of ranks 1 to 3 did what ran for it did" in result.stdout
    assert "the same peak of memory" in result.stdout
    assert "folded: they took as long as with all ranks, to the picosecond" in result.stdout


@pytest.mark.slow
@pytest.mark.adr("0231-D2")
def test_time_of_a_host_is_named_and_fails_nothing() -> None:
    result = on_command_line("works_on_host 1", "--fold=check", machine="h100-sxm")
    assert result.returncode == 0
    assert re.search(
        r"rank 1 does, but in another time, what rank 0 does, which ran for it: \+[0-9,]+ calls of "
        r"Python before aten.ones at fold_differences.py:\d+; its host is busy [0-9.]+ ms longer",
        result.stdout,
    )
    assert "they took as long" not in result.stdout


@pytest.mark.slow
@pytest.mark.adr("0231-D3")
@pytest.mark.parametrize(
    "case", daily("last_of_all", of=("last_of_all", "first_of_node", "one_row"))
)
def test_on_several_nodes_each_kind_of_rank_is_run(case: str) -> None:
    result = on_command_line(case, "--fold=check", machine="h100-sxm:2x6", ranks=6, nodes=2)
    assert result.returncode == 1
    assert "does not do what rank 0 does, which ran for it: " in result.stdout


@pytest.mark.slow
@pytest.mark.adr("0231-D4")
def test_without_a_check_a_second_rank_is_looked_at() -> None:
    result = on_command_line("straggles 1", "--fold", machine="h100-sxm")
    assert "folded: rank 1 does not do what rank 0 does: aten.mm at fold_diff" in result.stdout
    assert "they took as long" not in result.stdout


UNITS = {"ns": 1, "us": 10**3, "ms": 10**6}


def times_of(
    case: str, machine: str, nodes: int, ranks: int, *options: str
) -> tuple[list[int], str]:
    """Return when each step of a model ended, in ns, and what was printed."""
    command = ["kernbench", "torchrun", "--nproc-per-node", str(ranks), "--nnodes", str(nodes)]
    command += ["--machine", machine, "--no-data", *options, str(MODELS), case, "timed"]
    forked = run_forked(*command, imports=PYTORCH)
    assert forked.returncode == 0, forked.stderr
    return [int(item) for item in re.findall(r" at (\d+) ns", forked.stdout)], forked.stdout


@pytest.mark.slow
@pytest.mark.adr("0185-D4")
@pytest.mark.adr("0231-D4", "0231-D5")
@pytest.mark.parametrize(
    ("case", "machine", "nodes", "ranks"),
    [
        ("ddp", "h100-sxm:4", 1, 4),
        of_campaigns("fsdp", "h100-sxm:4", 1, 4),
        of_campaigns("hsdp", "h100-sxm:2x4", 2, 4),
        of_campaigns("tp_dp", "h100-sxm:2x8", 2, 8),
        of_campaigns("tp_pp_dp", "h100-sxm", 1, 8),
        of_campaigns("ep", "h100-sxm", 1, 8),
        of_campaigns("fsdp", "h100-sxm:2x8", 2, 8),
        of_campaigns("ep", "h100-sxm:2x8", 2, 8),
    ],
)
def test_a_stated_bound_holds_in_each_step(case: str, machine: str, nodes: int, ranks: int) -> None:
    folded, said = times_of(case, machine, nodes, ranks, "--fold")
    whole, _ = times_of(case, machine, nodes, ranks)
    bound = re.search(r"times differ by at most ([0-9.]+) (ns|us|ms)", said)
    assert bound is not None, said
    bound_ns = float(bound[1]) * UNITS[bound[2]]
    assert 0 < bound_ns < max(whole)
    # A folded program runs twice, and what it prints at first is not seen.
    assert len(folded) == len(whole) == 3
    for times in (zip(folded, whole, strict=True), zip(steps(folded), steps(whole), strict=True)):
        assert all(abs(one - other) <= bound_ns for one, other in times)


def steps(times: list[int]) -> list[int]:
    """Return how long each step took."""
    return [end - begin for begin, end in pairwise(times)]


@pytest.mark.campaign
@pytest.mark.slow
def test_what_is_kept_and_where_output_goes_takes_no_time(tmp_path: Path) -> None:
    plain, _ = times_of("ddp", "h100-sxm:2", 1, 2)
    assert times_of("ddp", "h100-sxm:2", 1, 2, "--save", str(tmp_path / "x.run"))[0] == plain
    assert times_of("ddp", "h100-sxm:2", 1, 2, "--prefix")[0] == plain


@pytest.mark.slow
@pytest.mark.parametrize("nodes", daily(32, of=(32, 128)))
def test_a_folded_run_is_said_in_one_number_of_ranks_and_plain_units(
    tmp_path: Path, nodes: int
) -> None:
    run = str(tmp_path / "folded.run")
    result = on_command_line(
        "twin_broadcasts",
        *("--fold", "--save", run),
        machine=f"h100-sxm:{nodes}x8",
        ranks=8,
        nodes=nodes,
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"shorter, by up to [0-9.]+ [mu]s; ", result.stdout)
    assert "e+" not in result.stdout
    why = run_forked("kernbench", "why", run, imports=PYTORCH)
    assert f"{8 * nodes} ranks of h100-sxm (1 of them ran)" in why.stdout
