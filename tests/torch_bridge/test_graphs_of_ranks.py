"""Collectives in CUDA graphs: all ranks call them when they replay."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernbench.clock import Rank  # noqa: E402
from kernbench.errors import CollectiveMismatchError, DeadlockError  # noqa: E402
from tests.tiers import daily  # noqa: E402
from tests.torch_bridge.running import PROGRAMS, simulated  # noqa: E402

run = partial(simulated, "graphs_of_ranks.py", nprocs=2)


@pytest.mark.adr("0094-D6")
@pytest.mark.parametrize("data", [True, False])
def test_collectives_of_a_graph_give_what_eager_ones_do(data: bool) -> None:
    context = run("collectives_of_a_graph_give_what_eager_ones_do", nprocs=4, data=data)
    log = context.op_log
    launched = sum(
        host_span.kind == "launch" and host_span.label == "all_reduce"
        for host_span in log.host_spans
    )
    # Two of each rank's step, of which three are eager; the graphs' are launched with these.
    assert launched == 4 * 3 * 2
    reduced = sum(
        len(instance.ranks) for instance in log.instances if instance.template.name == "all_reduce"
    )
    assert reduced == 2 * launched


@pytest.mark.slow
@pytest.mark.adr("0094-D6")
@pytest.mark.parametrize("parallel", daily("ddp", of=("tensor", "ddp")))
def test_parallel_training_that_is_captured_whole_learns_what_one_process_does(
    parallel: str,
) -> None:
    run("parallel_training_that_is_captured_whole_learns_what_one_process_does", parallel)


@pytest.mark.adr("0094-D6")
def test_an_overlapped_collective_of_a_graph_overlaps() -> None:
    context = run(
        "an_overlapped_collective_of_a_graph_overlaps",
        data=False,
    )
    log = context.op_log.instances
    reduced, product, added = (
        next(item for item in log if item.template.name == name and 0 in item.ranks)
        for name in ("all_reduce", "aten.mm", "aten.add")
    )
    assert product.starts_ps[0] < reduced.ends_ps[0] <= added.starts_ps[0]


@pytest.mark.adr("0094-D6")
def test_ranks_yield_in_a_replay_as_often_for_many_collectives_as_for_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[int] = []
    wait = Rank.wait

    def counted(*arguments: Any) -> Any:
        waits.append(1)
        return wait(*arguments)

    monkeypatch.setattr(Rank, "wait", counted)
    times = []
    for count in (4, 40):
        waits.clear()
        context = run("replays_without_data", count, data=False)
        replayed = [
            instance
            for instance in context.op_log.instances
            if instance.template.name == "all_reduce"
        ]
        times.append(len(waits))
        assert len(replayed) == count * 11
    # Ten replays, of 36 collectives more: what the capture and one eager step wait for, at most.
    assert times[1] - times[0] < 2 * 36 * 2


@pytest.mark.adr("0094-D6")
@pytest.mark.parametrize(
    ("case", "error"),
    [
        ("one_rank_replays", DeadlockError),
        ("one_rank_replays_and_the_other_broadcasts", CollectiveMismatchError),
    ],
)
def test_replays_that_do_not_meet_end_at_once(case: str, error: type[Exception]) -> None:
    with pytest.raises((error, BaseExceptionGroup)) as caught:
        run(case)
    exception = caught.value
    if isinstance(exception, BaseExceptionGroup):
        assert exception.split(error)[1] is None
        exception = exception.exceptions[0]
    lines = (PROGRAMS / "graphs_of_ranks.py").read_text().splitlines()
    replay = lines.index("        g.replay()", lines.index(f"def {case}() -> None:")) + 1
    assert f"graphs_of_ranks.py:{replay}" in str(exception)


@pytest.mark.adr("0094-D3")
@pytest.mark.parametrize(
    "named",
    [
        "barrier",
        "is_completed",
        "operation not permitted",
        "UntypedStorage.resize_ of memory that is older",
    ],
)
def test_what_the_host_takes_part_in_is_refused(named: str) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        run("what_the_host_takes_part_in_is_refused", named)
    assert all(
        named in str(exception) and "when stream is capturing" in str(exception)
        for exception in caught.value.exceptions
    )


@pytest.mark.adr("0094-D7")
def test_a_sharded_model_that_is_captured_trains_as_it_does_otherwise() -> None:
    run("a_sharded_model_that_is_captured_trains_as_it_does_otherwise")
