"""CUDA graphs: a capture runs nothing, a replay computes all of it anew at one launch."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kernbench.report import write_trace  # noqa: E402
from kernbench.torch_bridge.placement.moves import UNDER_WAY  # noqa: E402
from tests.torch_bridge.running import assert_same_bits, cases_of, simulated  # noqa: E402

run = partial(simulated, "graphs.py")


MARKED = (
    (
        pytest.mark.adr("0094-D1"),
        (
            "results_hold_nothing_until_the_first_replay_and_then_those_of_the_inputs",
            "the_host_and_other_streams_work_on_during_a_capture",
        ),
    ),
    (
        pytest.mark.adr("0094-D3"),
        (
            "what_the_host_would_wait_for_is_refused_in_a_capture",
            "a_capture_that_has_failed_leaves_the_program_as_it_was",
            "wrong_use_of_a_graph_is_a_runtime_error_that_says_what_to_do",
        ),
    ),
    (
        pytest.mark.adr("0094-D4"),
        (
            "random_numbers_are_drawn_anew_at_each_replay_as_if_eager",
            "a_state_that_depends_on_replays_is_refused_in_a_capture",
        ),
    ),
    (pytest.mark.adr("0094-D5"), ("memory_of_a_capture_is_the_graphs_until_it_is_gone",)),
)
OTHER = (
    "branches_of_a_graph_wait_for_each_other_as_captured",
    "an_empty_graph_is_a_warning",
    "triton_kernels_are_captured_and_replayed",
    "graphed_callables_compute_what_they_did_forward_and_backward",
    "a_capture_that_nobody_ends_ends_with_the_run",
    "a_trace_draws_the_arrow_of_a_graphs_launch_to_its_first_operation",
)
"""Cases that other tests run."""


@pytest.mark.parametrize("case", cases_of("graphs.py", MARKED, OTHER))
def test_a_graph_does_what_is_said(case: str) -> None:
    run(case)


@pytest.mark.adr("0094-D1")
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "fused Adam"])
@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable")
def test_a_training_step_that_is_captured_whole_trains_as_the_eager_one(optimizer: str) -> None:
    run("a_training_step_that_is_captured_whole_trains_as_the_eager_one", optimizer)


@pytest.mark.adr("0094-D2")
@pytest.mark.parametrize("data", [True, False])
def test_a_replay_takes_one_launch_and_the_time_of_its_operations(data: bool) -> None:
    count = 20
    context = run(
        "a_replay_takes_one_launch_and_the_time_of_its_operations",
        count,
        data=data,
    )
    adds = [
        instance for instance in context.op_log.instances if instance.template.name == "aten.add_"
    ]
    assert len(adds) == count
    (launch,) = (
        host_span for host_span in context.op_log.host_spans if host_span.label == "graph 1"
    )
    assert launch.kind == "launch"
    assert launch.end_ps - launch.start_ps == context.machine.sip.host_launch_ps
    assert adds[0].starts_ps[0] == launch.end_ps
    total_ps = sum(item.template.duration_ps for item in adds)
    assert adds[-1].ends_ps[0] - launch.end_ps == total_ps
    # Each is there when the one before ends.
    assert all(one.ends_ps == other.starts_ps for one, other in pairwise(adds))


@pytest.mark.adr("0094-D2")
def test_branches_of_a_graph_wait_for_each_other_as_captured() -> None:
    context = run("branches_of_a_graph_wait_for_each_other_as_captured")
    by_name = {instance.template.name: instance for instance in reversed(context.op_log.instances)}
    copy, product, add = (by_name[name] for name in ("copy_from_host", "aten.mm", "aten.add"))
    assert copy.stream != product.stream == add.stream
    assert copy.starts_ps[0] < product.ends_ps[0] < copy.ends_ps[0] == add.starts_ps[0]


def test_an_empty_graph_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        run("an_empty_graph_is_a_warning")


@pytest.mark.adr("0094-D4")
@pytest.mark.parametrize("data", [True, False])
def test_generators_share_states_inside_of_a_capture_and_outside(
    tmp_path: Path, data: bool
) -> None:
    simulated("generator_states.py", tmp_path, data=data)
    expected, result = (torch.load(tmp_path / f"{name}.pt") for name in ("expected", "found"))
    assert [[item.shape for item in pair] for pair in result] == [[(5,), (6,)]] * 3
    if data:
        # Of a run without data nobody knows them; that they were drawn shows in the offsets.
        assert assert_same_bits(result, [list(pair) for pair in expected]) == 6


@pytest.mark.adr("0094-D1")
def test_triton_kernels_are_captured_and_replayed() -> None:
    context = run("triton_kernels_are_captured_and_replayed")
    assert sum(instance.template.name == "scale" for instance in context.op_log.instances) == 6 + 1


@pytest.mark.adr("0094-D3")
def test_a_capture_that_nobody_ends_ends_with_the_run() -> None:
    run("a_capture_that_nobody_ends_ends_with_the_run")
    assert not UNDER_WAY
    run("results_hold_nothing_until_the_first_replay_and_then_those_of_the_inputs")


@pytest.mark.adr("0094-D1")
@pytest.mark.parametrize("data", [True, False])
def test_graphed_callables_compute_what_they_did_forward_and_backward(data: bool) -> None:
    context = run("graphed_callables_compute_what_they_did_forward_and_backward", data=data)
    launches = [
        host_span.label for host_span in context.op_log.host_spans if host_span.kind == "launch"
    ]
    assert [launches.count(f"graph {number}") for number in (1, 2)] == [3, 3]
    # Inputs and gradients of results come to where the graphs read them; the state, to the copy.
    assert launches.count("aten.copy_") == 3 + 3 + 4


def test_what_a_graph_holds_can_be_written_to_a_file(tmp_path: Path) -> None:
    said = tmp_path / "graph.dot"
    run("what_a_graph_holds_can_be_written_to_a_file", said)
    assert '0 [label="aten.mm"]' in said.read_text()
    assert "0 -> 1" in said.read_text()


def test_a_trace_draws_the_arrow_of_a_graphs_launch_to_its_first_operation(tmp_path: Path) -> None:
    context = run("a_trace_draws_the_arrow_of_a_graphs_launch_to_its_first_operation")
    path = tmp_path / "trace.json"
    write_trace(context.op_log, context.machine, path)
    events = json.loads(path.read_text())["traceEvents"]
    ends = {event["id"]: event["ts"] for event in events if event["ph"] == "f"}
    starts = {event["id"]: event["ts"] for event in events if event["ph"] == "s"}
    arrows = {starts[item]: ends[item] for item in ends}
    instances = context.op_log.instances
    muls = [instance for instance in instances if instance.template.name == "aten.mul"]
    for span in context.op_log.host_spans:
        if span.label == "graph 1":
            assert arrows[span.start_ps / 1e6] == muls[1].starts_ps[0] / 1e6
        elif span.label == "aten.mul" and span.kind == "launch":
            here = muls[0] if span.start_ps < muls[0].starts_ps[0] else muls[2]
            assert arrows[span.start_ps / 1e6] == here.starts_ps[0] / 1e6
